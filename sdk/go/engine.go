package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// engineStart is the timeout until a started engine is ready.
	engineStart = time.Minute
	// idleTimeout is the time without use after which an engine that is started here ends, unless AGENT_SANDBOX_IDLE_TIMEOUT specifies another
	// one.
	idleTimeout = "15m"
	// lockInterval is the interval between attempts to lock the data folder.
	lockInterval = 50 * time.Millisecond
)

// engine is a running `agent-sandbox up`, as described by its state file.
type engine struct {
	PID        int    `json:"pid"`
	StartTicks uint64 `json:"startTicks"`
	API        string `json:"api"`
	Router     string `json:"router"`
	folder     string
}

// usualFolder returns the default data folder of an engine.
func usualFolder() string {
	if folder := os.Getenv("AGENT_SANDBOX_DATA_DIR"); folder != "" {
		return folder
	}
	if os.Geteuid() == 0 {
		return "/var/lib/agent-sandbox"
	}
	base := os.Getenv("XDG_DATA_HOME")
	if !filepath.IsAbs(base) {
		base = filepath.Join(os.Getenv("HOME"), ".local/share")
	}
	return filepath.Join(base, "agent-sandbox")
}

// findEngine returns the engine that runs on the folder, or nil.
func findEngine(folder string) *engine {
	folder = folderOr(folder)
	content, err := os.ReadFile(filepath.Join(folder, "up.json"))
	if err != nil {
		return nil
	}
	found := &engine{folder: folder}
	if json.Unmarshal(content, found) != nil || startTicks(found.PID) != found.StartTicks {
		return nil
	}
	return found
}

// engineWasUsed reports whether an engine has run on the folder: it may have objects and sandboxes.
func engineWasUsed(folder string) bool {
	_, err := os.Stat(filepath.Join(folderOr(folder), "api"))
	return err == nil
}

// startTicks returns field 22 (starttime) of /proc/PID/stat; 0 for a process that does not exist or is a zombie.
func startTicks(pid int) uint64 {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The program's name may contain spaces and brackets, so counting starts after the last closing one.
	text := string(stat)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return 0
	}
	ticks, _ := strconv.ParseUint(fields[19], 10, 64)
	return ticks
}

// folderOr returns the folder, or the default one for "".
func folderOr(folder string) string {
	if folder == "" {
		return usualFolder()
	}
	return folder
}

// findOrStartEngine returns the engine that runs on the folder. If there is none, it starts one in the background, which ends when it is not used any
// more, and says so on stderr.
func findOrStartEngine(ctx context.Context, folder string) (*engine, error) {
	if found := findEngine(folder); found != nil {
		return found, nil
	}
	ctx, cancel := context.WithTimeout(ctx, engineStart)
	defer cancel()
	// Held until the engine runs: of several processes that find none, one starts it.
	lock, err := lockFolder(ctx, folderOr(folder))
	if err != nil {
		return nil, fmt.Errorf("%w: cannot lock the data folder %s: %v", ErrNoCluster, folderOr(folder), err)
	}
	defer lock.Close()
	if found := findEngine(folder); found != nil {
		return found, nil
	}
	return startEngine(ctx, folder)
}

func startEngine(ctx context.Context, folder string) (*engine, error) {
	program := valueOr("AGENT_SANDBOX_BIN", "agent-sandbox")
	var arguments []string
	if folder != "" {
		arguments = append(arguments, "--data-dir", folder)
	}
	arguments = append(arguments, "up", "--detach", "--idle-timeout", valueOr("AGENT_SANDBOX_IDLE_TIMEOUT", idleTimeout))
	var said bytes.Buffer
	command := exec.CommandContext(ctx, program, arguments...)
	command.Stderr = &said
	if err := command.Run(); err != nil {
		return nil, fmt.Errorf("%w: `%s up --detach` failed: %v: %s; put the program on PATH or name it with AGENT_SANDBOX_BIN",
			ErrNoCluster, program, err, strings.TrimSpace(said.String()))
	}
	if found := findEngine(folder); found != nil {
		fmt.Fprintln(os.Stderr, "note: started the engine on this machine; it ends when it is not used any more, or with `agent-sandbox down`")
		return found, nil
	}
	return nil, fmt.Errorf("%w: `%s up --detach` ended at once", ErrNoCluster, program)
}

// lockFolder locks the data folder against other processes that start an engine on it, and waits for one that is ending.
func lockFolder(ctx context.Context, folder string) (*os.File, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	file, err := os.Open(folder)
	if err != nil {
		return nil, err
	}
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return file, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			file.Close()
			return nil, err
		}
		select {
		case <-ctx.Done():
			file.Close()
			return nil, ctx.Err()
		case <-time.After(lockInterval):
		}
	}
}

// valueOr returns the value of an environment variable, or the other one when it is not set.
func valueOr(name, other string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return other
}
