package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/goroce/goroce/roce"
	"github.com/goroce/goroce/roce/netio"
	"github.com/spf13/cobra"
)

// Exit statuses.
const (
	exitOK      = 0
	exitFailure = 1 // something did not work
	exitUsage   = 2 // wrong flags or arguments: nothing was tried
)

// app is what the commands share. Tests replace its fields.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	progress       bool   // stderr is a terminal: say what is being waited for
	port           uint16 // of UDP
	// open opens a device; tests put faults under it and use another UDP port.
	open func(roce.Config) (*roce.Device, error)
	// listen opens the TCP port of a pingpong server.
	listen func(ctx context.Context, port uint16) (net.Listener, error)
	// demoAddrs are the addresses of the demo's endpoints, and of those of perf --local.
	demoAddrs [2]netip.Addr
}

// newApp returns the commands with the real world below them.
func newApp(stdout, stderr io.Writer) *app {
	return &app{
		stdin: os.Stdin, stdout: stdout, stderr: stderr, progress: isTerminal(stderr), port: netio.Port,
		open: openDevice, listen: listen,
		demoAddrs: [2]netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.AddrFrom4([4]byte{127, 0, 0, 2})},
	}
}

// run runs the command line args, without the program's name, and returns the
// exit status. An error is one line on stderr, with --json a JSON object.
func (a *app) run(ctx context.Context, args []string) int {
	root := a.command()
	root.SetArgs(append([]string{}, args...)) // nil would mean those of the process
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = errors.New("interrupted")
	}
	failed := failure{Error: oneLine(err), Status: exitFailure}
	if usage := (*usageError)(nil); errors.As(err, &usage) {
		failed = failure{failed.Error, exitUsage, usage.command + " --help"}
	}
	if cmd.Flags().Lookup("json") != nil && slices.Contains(args, "--json") { // it may stand behind what was not understood
		json.NewEncoder(a.stderr).Encode(failed)
		return failed.Status
	}
	see := ""
	if failed.See != "" {
		see = fmt.Sprintf(" (see '%s')", failed.See)
	}
	fmt.Fprintf(a.stderr, "roce: %s%s\n", failed.Error, see)
	return failed.Status
}

// failure is what --json prints on stderr instead of the line.
type failure struct {
	Error  string `json:"error"`
	Status int    `json:"exit_status"`
	See    string `json:"see,omitempty"` // a command that tells more
}

func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:   "roce",
		Short: "RoCEv2 in user space: try it, test it, look at it",
		Long: `roce speaks RoCEv2 (RDMA over UDP port 4791) from an ordinary process: without
a kernel module, without an RDMA device and without privileges.

Exit status: 0 success, 1 failure, 2 wrong usage.`,
		Version:       versionText(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef(cmd, "unknown command %q", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			cmd.SetOut(a.stderr)
			cmd.Help()
			return usagef(cmd, "no command given")
		},
	}
	root.SetVersionTemplate("roce {{.Version}}\n")
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usagef(cmd, "%v", err) })
	root.SetHelpCommand(helpCommand(root))
	root.AddCommand(
		a.devinfoCommand(), a.pingpongCommand(), a.perfCommand(), a.pingCommand(), a.cmCommand(),
		a.dumpCommand(), a.statCommand(), a.doctorCommand(), a.interopCommand(), a.serveCommand(), a.demoCommand(), a.execCommand(), a.manCommand(root),
	)
	return root
}

// helpCommand is cobra's, but an unknown command is an error.
func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [command]",
		Short: "Help about any command",
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return usagef(cmd, "unknown command %q", args[len(args)-1])
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	}
}

// usageError is a mistake in the command line: exit status 2.
type usageError struct {
	command string
	text    string
}

func (e *usageError) Error() string { return e.text }

func usagef(cmd *cobra.Command, format string, args ...any) error {
	return &usageError{cmd.CommandPath(), fmt.Sprintf(format, args...)}
}

// maxArgs refuses more than n arguments.
func maxArgs(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > n {
			return usagef(cmd, "unexpected argument %q: %s", args[n], what)
		}
		return nil
	}
}

// oneLine makes one line of an error, joined ones included.
func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

// progressf says on a terminal what is going on.
func (a *app) progressf(format string, args ...any) {
	if a.progress {
		fmt.Fprintf(a.stderr, format+"\n", args...)
	}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && f.Name() != os.DevNull
}

// status shows on a terminal what is going on, in one line that the next call
// replaces; an empty text removes it.
func (a *app) status(format string, args ...any) {
	if a.progress {
		fmt.Fprintf(a.stderr, "\r\x1b[K"+format, args...)
	}
}
