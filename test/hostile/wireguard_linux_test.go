package hostile

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestWireGuard runs the example of docs/security.md.
func TestWireGuard(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces with a veth pair")
	}
	for _, tool := range []string{"wireguard-go", "wg", "ip", "ss"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s (Debian packages wireguard-go, wireguard-tools, iproute2)", tool)
		}
	}
	roce := filepath.Join(t.TempDir(), "roce")
	if out, err := exec.Command("go", "build", "-o", roce, "../../cmd/roce").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	out, err := exec.Command("./wireguard.sh", roce).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "data of 128 messages verified") {
		t.Errorf("%v\n%s", err, out)
	}
}
