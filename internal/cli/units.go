package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Unknown stands for a number that there is none of.
const Unknown = "-"

// Bytes returns a size in binary units: 1536 is "1.5 KiB".
func Bytes(n uint64) string {
	return scaled(float64(n), 1024, "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
}

// BitRate returns a rate in decimal units, as limits are given: 30000000 is
// "30 Mbit/s".
func BitRate(bitsPerSecond uint64) string {
	return scaled(float64(bitsPerSecond), 1000, "bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s", "Pbit/s", "Ebit/s")
}

// Count returns a number with its digits in groups: 1558 is "1,558".
func Count[N int | uint32 | uint64](n N) string {
	digits := strconv.FormatInt(int64(n), 10)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// Plural returns "1 device" or "2 devices".
func Plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return Count(n) + " " + many
}

// Duration returns a duration with as many digits as a person wants.
func Duration(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d >= 2*day:
		return Plural(int(d/day), "day", "days")
	case d >= time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	case d >= 10*time.Second:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d >= time.Millisecond:
		return strconv.FormatFloat(float64(d)/float64(time.Millisecond), 'g', 3, 64) + "ms"
	}
	return d.Round(time.Microsecond).String()
}

// scaled uses the largest unit of which there is at least one, and three
// significant digits where the number is not whole.
func scaled(value, step float64, units ...string) string {
	unit := 0
	for value >= step && unit < len(units)-1 {
		value /= step
		unit++
	}
	switch {
	case unit == 0 || value >= 100:
		return fmt.Sprintf("%.0f %s", value, units[unit])
	default:
		return strconv.FormatFloat(value, 'g', 3, 64) + " " + units[unit]
	}
}

// Wrap breaks a text into lines of at most that many characters, where words
// allow; every line but the first starts with the indent.
func Wrap(text string, width int, indent string) string {
	var wrapped strings.Builder
	column := 0
	for _, word := range strings.Fields(text) {
		length := utf8.RuneCountInString(word)
		switch {
		case column == 0:
		case column+1+length > width:
			wrapped.WriteString("\n" + indent)
			column = len(indent)
		default:
			wrapped.WriteByte(' ')
			column++
		}
		wrapped.WriteString(word)
		column += length
	}
	return wrapped.String()
}
