#!/usr/bin/env bash
# The campaigns that are too long for the default suite: every property test with many more checks, then every fuzz
# target for a while. Needs root. A failure prints the file or seed that reproduces it.
#
#   CHECKS    checks of each property test (default 20000)
#   FUZZTIME  time for each fuzz target (default 10m)
#   SCENARIOS scenarios of the simulation (default 100000; about 100 a second)
#   FIRST     seed of the first one (default: another one every day)
#   CHAOS     time for chaos on the real kernel (default 10m)
#   LIVES     pod lives with the agent killed every 50 (default 10000; a quarter as many follow without kills)
#   ROUNDS    rounds of the sweep beside an agent that leaks (default 10000)
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go}

echo "== property tests, ${CHECKS:=20000} checks each"
packages=$(grep -rl --include='*_test.go' 'pgregory.net/rapid' . | xargs -n1 dirname | sort -u)
for package in $packages; do
	"$go" test -race -count=1 -timeout 120m "$package" -rapid.checks="$CHECKS"
done

echo "== simulation, ${SCENARIOS:=100000} scenarios from seed ${FIRST:=$(($(date +%s) / 86400 * 1000000))}"
"$go" test -count=1 -timeout 0 ./internal/simulation -run TestScenarios -v \
	-simulation.count="$SCENARIOS" -simulation.first="$FIRST" -simulation.budget=0

echo "== sweep beside an agent that leaks, ${ROUNDS:=10000} rounds"
MANX_SWEEP_ROUNDS=$ROUNDS "$go" test -count=1 -timeout 120m ./internal/sweep -v --ginkgo.focus "stand-in"

echo "== crash matrix: every operation on every kind of node"
MANX_CRASH_MATRIX=full "$go" test -count=1 -timeout 0 ./fv -v -ginkgo.timeout=6h -ginkgo.focus "SIGKILL before each kernel write"

echo "== chaos, ${CHAOS:=10m}"
MANX_CHAOS_DURATION=$CHAOS "$go" test -count=1 -timeout 0 ./fv/chaos -v -ginkgo.timeout=6h

echo "== pod lives, ${LIVES:=10000}"
MANX_SOAK_LIVES=$LIVES "$go" test -count=1 -timeout 0 ./fv/soak -v -ginkgo.timeout=6h

echo "== fuzz targets, ${FUZZTIME:=10m} each"
grep -rho --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sort -u | awk '{print $2}' | while read -r target; do
	package=$(dirname "$(grep -rl --include='*_test.go' "^func $target(" .)")
	echo "-- $target in $package"
	"$go" test "$package" -run '^$' -fuzz "^$target\$" -fuzztime "$FUZZTIME" </dev/null
done
