# Verbs:
#   make build   the static binary bin/manx
#   make demo    cases A and B on this machine's kernel, in throwaway network namespaces (needs root)
#   make test    everything that continuous integration checks: unit tests with -race, then fv (needs root)
#   make lint    gofmt, go vet, staticcheck
#   make fv      functional verification only
#   make bench   benchmarks with their naive baselines
#   make soak    campaigns: long property runs, crashes, chaos, thousands of pod lives, fuzzing (hours)
#   make traffic measure traffic against limits, into docs/traffic.md (needs an idle machine, half an hour)
#   make clean   remove what the others made

GO       ?= go
BIN      := bin
UNIT     := $(shell $(GO) list ./... 2>/dev/null | grep -v '/fv')
FV       := $(shell $(GO) list ./fv/... 2>/dev/null)
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
FUZZTIME ?= 10m
CHECKS   ?= 20000

# ROOT runs a command as root: directly where we are root, through sudo otherwise.
ROOT := $(shell [ "$$(id -u)" = 0 ] || echo "sudo -E env PATH=$$PATH")

.PHONY: build demo test unit lint fv bench soak traffic clean cc promtool

build:
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o $(BIN)/manx ./cmd/manx

demo: build
	$(ROOT) $(BIN)/manx demo

test: unit fv

# The race detector needs a C compiler; where there is none and this is a Debian, install one.
cc:
	@command -v $${CC:-gcc} >/dev/null || command -v cc >/dev/null || \
	  { command -v apt-get >/dev/null && $(ROOT) apt-get update -qq && $(ROOT) apt-get install -y -qq gcc libc6-dev; } || \
	  { echo "make test: the race detector needs a C compiler (gcc); please install one" >&2; exit 1; }

# Metrics and alerts are checked by Prometheus's own tool.
promtool:
	@$(ROOT) scripts/promtool.sh $(BIN)

unit: cc promtool
	$(ROOT) $(GO) test -race -timeout 10m $(UNIT)
	$(ROOT) $(GO) test ./internal/simulation -simulation.first=1000000 -simulation.count=3000 -simulation.budget=1m

# One package at a time: some measure traffic.
fv:
	$(ROOT) $(GO) test -count=1 -p 1 -timeout 15m $(FV)

lint:
	@out=$$(gofmt -l .); [ -z "$$out" ] || { echo "not gofmt-ed:"; echo "$$out"; exit 1; }
	$(GO) vet ./...
	$(GO) tool -modfile=tools/go.mod staticcheck ./...

bench:
	$(ROOT) $(GO) test -run '^$$' -bench . -benchmem -timeout 30m $(UNIT)

soak: cc
	$(ROOT) env GO=$(GO) CHECKS=$(CHECKS) FUZZTIME=$(FUZZTIME) scripts/soak.sh

traffic:
	$(ROOT) env MANX_TRAFFIC=1 MANX_TRAFFIC_REPORT=$(CURDIR)/docs/traffic.md \
	  $(GO) test -count=1 -timeout 0 ./fv/traffic -v -ginkgo.v -ginkgo.timeout=6h

clean:
	rm -rf $(BIN)
	$(GO) clean -testcache
