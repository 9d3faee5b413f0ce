package main

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// manCommand is for packages: it writes a man page for each command.
func (a *app) manCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR",
		Short:  "Write the man pages into a directory",
		Hidden: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef(cmd, "one directory is needed")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			root.InitDefaultCompletionCmd()
			root.DisableAutoGenTag = true
			date, err := manDate(os.Getenv("SOURCE_DATE_EPOCH"))
			if err != nil {
				return err
			}
			return doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "goroce", Manual: "User Commands", Date: &date}, args[0])
		},
	}
}

// manDate is the date on the pages: today, or what a reproducible build says
// (reproducible-builds.org, SOURCE_DATE_EPOCH: seconds since 1970).
func manDate(epoch string) (time.Time, error) {
	if epoch == "" {
		return time.Now(), nil
	}
	n, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH: %q is no number of seconds", epoch)
	}
	return time.Unix(n, 0).UTC(), nil
}
