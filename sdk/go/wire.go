package sandbox

import (
	"encoding/base64"
	"time"
)

// prefix is the path prefix of the daemon's native API.
const prefix = "/sandbox/v1"

type terminalSize struct {
	Columns int `json:"columns"`
	Rows    int `json:"rows"`
}

// command is the body of an exec request, with client-side options.
type command struct {
	Command        string            `json:"command,omitempty"`
	Argv           []string          `json:"argv,omitempty"`
	Env            map[string]string `json:"env,omitempty"`
	Cwd            string            `json:"cwd,omitempty"`
	User           string            `json:"user,omitempty"`
	TimeoutSeconds float64           `json:"timeoutSeconds,omitempty"`
	Stdin          *string           `json:"stdin,omitempty"`
	Terminal       *terminalSize     `json:"terminal,omitempty"`
	Base64         bool              `json:"base64,omitempty"`

	key, bootID string
}

func (c *command) limit() time.Duration {
	return time.Duration(c.TimeoutSeconds * float64(time.Second))
}

type execResult struct {
	ExitCode    int    `json:"exitCode"`
	Signal      *int   `json:"signal"`
	Stdout      string `json:"stdout"`
	Stderr      string `json:"stderr"`
	StdoutBytes int    `json:"stdoutBytes"`
	StderrBytes int    `json:"stderrBytes"`
	TimedOut    bool   `json:"timedOut"`
}

type wireEvent struct {
	Type     string `json:"type"`
	ID       int    `json:"id"`
	PID      int    `json:"pid"`
	Offset   int64  `json:"offset"`
	Text     string `json:"text"`
	Base64   string `json:"base64"`
	Bytes    int64  `json:"bytes"`
	ExitCode int    `json:"exitCode"`
	Signal   *int   `json:"signal"`
	TimedOut bool   `json:"timedOut"`
	Code     string `json:"code"`
	Message  string `json:"message"`
}

func (e *wireEvent) data() ([]byte, error) {
	if e.Base64 != "" {
		return base64.StdEncoding.DecodeString(e.Base64)
	}
	return []byte(e.Text), nil
}

// Info describes the sandbox's daemon.
type Info struct {
	Version       string `json:"version"`
	BootID        string `json:"bootId"`
	BaseDir       string `json:"baseDir"`
	RootDir       string `json:"rootDir"`
	Shell         string `json:"shell"`
	UID           int    `json:"uid"`
	GID           int    `json:"gid"`
	CanChangeUser bool   `json:"canChangeUser"`
	UptimeSeconds int64  `json:"uptimeSeconds"`
}

// ListeningPort is a port on which a program listens. On 127.0.0.1 and ::1 it is reached from inside the sandbox only.
type ListeningPort struct {
	Port     int    `json:"port"`
	Address  string `json:"address"`
	Protocol string `json:"protocol"`
}

// ProcessInfo is the state of a process when it was read.
type ProcessInfo struct {
	ID       int      `json:"id"`
	PID      int      `json:"pid"`
	Argv     []string `json:"argv"`
	Running  bool     `json:"running"`
	Terminal bool     `json:"terminal"`
	ExitCode *int     `json:"exitCode"`
	Signal   *int     `json:"signal"`
	TimedOut bool     `json:"timedOut"`
}

// FileInfo is a file, directory, link or other directory entry.
type FileInfo struct {
	Path       string    `json:"path"`
	Name       string    `json:"name"`
	Type       string    `json:"type"`
	Size       int64     `json:"size"`
	Mode       string    `json:"mode"`
	UID        int       `json:"uid"`
	GID        int       `json:"gid"`
	ModifiedAt time.Time `json:"modifiedAt"`
	LinkTarget string    `json:"linkTarget"`
}

// IsDir reports whether the entry is a directory.
func (f FileInfo) IsDir() bool { return f.Type == "directory" }

// Change is one change below a watched path.
type Change struct {
	Path string `json:"path"`
	Kind string `json:"change"`
}

// Match is one matching line of a content search.
type Match struct {
	Path string `json:"path"`
	Line int64  `json:"line"`
	Text string `json:"text"`
}
