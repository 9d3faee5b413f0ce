package table

import (
	"strings"
	"testing"
)

func TestTable(t *testing.T) {
	var tab Table
	tab.Row("operation", "µs", "")
	tab.Rule()
	tab.Row("SEND", "12345")
	tab.Row("READ", "1", "x")
	var b strings.Builder
	if _, err := tab.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	want := "" +
		"operation     µs\n" +
		"-------------------\n" +
		"SEND       12345\n" +
		"READ           1  x\n"
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}

func TestEmpty(t *testing.T) {
	var b strings.Builder
	if n, err := new(Table).WriteTo(&b); n != 0 || err != nil || b.Len() != 0 {
		t.Errorf("%d, %v, %q", n, err, b.String())
	}
}
