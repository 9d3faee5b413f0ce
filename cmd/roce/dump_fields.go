package main

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"reflect"
	"strings"
	"unicode"

	"github.com/gopacket/gopacket"
	glayers "github.com/gopacket/gopacket/layers"
	"github.com/goroce/goroce/ib"
	"github.com/goroce/goroce/ib/mad"
)

// field is a field of a header, with a value for JSON.
type field struct {
	name  string
	value any
}

// fieldsOf returns all fields of a layer, those of nested structures as well, in
// the order of the structure.
func fieldsOf(l gopacket.Layer) []field { return appendFields(nil, "", reflect.ValueOf(l).Elem()) }

func appendFields(list []field, prefix string, v reflect.Value) []field {
	for i := range v.NumField() {
		info, f := v.Type().Field(i), v.Field(i)
		name := prefix + snake(info.Name)
		if f.Kind() == reflect.Interface {
			if f.IsNil() {
				continue
			}
			f = f.Elem().Elem() // a mad.Message
		}
		switch {
		case f.Type() == reflect.TypeFor[glayers.BaseLayer]():
		case f.Kind() == reflect.Struct && !f.Type().Implements(reflect.TypeFor[fmt.Stringer]()):
			if info.Anonymous || info.Type.Kind() == reflect.Interface || f.Type() == reflect.TypeFor[mad.Header]() {
				name = strings.TrimSuffix(prefix, ".")
			}
			if name != "" {
				name += "."
			}
			list = appendFields(list, name, f)
		default:
			list = append(list, field{name, valueOf(info.Name, f)})
		}
	}
	return list
}

// valueOf is a number, a bool or a text. Keys, addresses and identifiers are
// hexadecimal texts; private data is, without the zeroes at its end.
func valueOf(name string, f reflect.Value) any {
	v := f.Interface()
	switch x := v.(type) {
	case []byte:
		return hex.EncodeToString(bytes.TrimRight(x, "\x00"))
	case ib.PSN:
		return uint32(x)
	case fmt.Stringer:
		return x.String()
	}
	switch {
	case f.Kind() == reflect.Uint64, strings.HasSuffix(name, "Key"):
		return fmt.Sprintf("%#x", v)
	case f.CanUint():
		return f.Uint()
	}
	return v
}

// snake makes "local_comm_id" of "LocalCommID".
func snake(name string) string {
	var b strings.Builder
	r := []rune(name)
	for i, c := range r {
		if i > 0 && unicode.IsUpper(c) && (unicode.IsLower(r[i-1]) || i > 1 && i+1 < len(r) && unicode.IsLower(r[i+1])) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(c))
	}
	return strings.ReplaceAll(b.String(), "q_key", "qkey")
}
