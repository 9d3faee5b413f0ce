package main

import (
	"bytes"
	"os"
	"os/exec"
	"testing"
)

// asCommand in the environment makes the test binary the command itself.
const asCommand = "GOROCE_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	os.Exit(m.Run())
}

// inNamespace runs a shell script in a network namespace of its own, in a new folder,
// and returns what it prints. $ROCE is the command; ip netns knows only namespaces
// that the script itself makes.
func inNamespace(t *testing.T, script string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	for _, tool := range []string{"unshare", "ip"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs the command %s", tool)
		}
	}
	if out, err := exec.Command("unshare", "-n", "-m", "true").CombinedOutput(); err != nil {
		t.Skipf("needs network namespaces: %s", out)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "-n", "-m", "sh", "-e", "-c", "mkdir -p /run/netns && mount -t tmpfs none /run/netns\n"+script)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), asCommand+"=1", "ROCE="+self)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s%s", err, &out, &errs)
	}
	return out.String()
}
