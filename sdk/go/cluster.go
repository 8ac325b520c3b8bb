package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
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
	if folder == "" {
		folder = usualFolder()
	}
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

func startEngine(ctx context.Context, folder string) (*engine, error) {
	program := os.Getenv("AGENT_SANDBOX_BIN")
	if program == "" {
		program = "agent-sandbox"
	}
	var arguments []string
	if folder != "" {
		arguments = append(arguments, "--data-dir", folder)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	output, err := exec.CommandContext(ctx, program, append(arguments, "up", "--detach")...).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%w: `%s up --detach` failed: %v: %s; put the program on PATH or name it with AGENT_SANDBOX_BIN",
			ErrNoCluster, program, err, strings.TrimSpace(string(output)))
	}
	if found := findEngine(folder); found != nil {
		return found, nil
	}
	return nil, fmt.Errorf("%w: `%s up --detach` ended at once", ErrNoCluster, program)
}

// cluster chooses a cluster: the configured one, else the Pod's own, KUBECONFIG, the engine on this machine, ~/.kube/config.
func cluster(ctx context.Context, o *options) (*rest.Config, string, error) {
	if o.rest != nil {
		return o.rest, "", nil
	}
	if o.kubeconfig != "" {
		return fromFile(o.kubeconfig, o.context)
	}
	if o.local {
		found := findEngine(o.dataDir)
		if found == nil && o.startLocal {
			started, err := startEngine(ctx, o.dataDir)
			if err != nil {
				return nil, "", err
			}
			found = started
		}
		return ofEngine(found, o.context)
	}
	if os.Getenv("KUBERNETES_SERVICE_HOST") != "" {
		config, err := rest.InClusterConfig()
		return config, "", err
	}
	if path := os.Getenv("KUBECONFIG"); path != "" {
		return fromFile(path, o.context)
	}
	if found := findEngine(""); found != nil {
		return ofEngine(found, o.context)
	}
	home := filepath.Join(os.Getenv("HOME"), ".kube/config")
	if _, err := os.Stat(home); errors.Is(err, fs.ErrNotExist) {
		return nil, "", fmt.Errorf("%w: KUBECONFIG is not set, ~/.kube/config is not there, no engine runs on this machine; "+
			"start one (`agent-sandbox up --detach`) or name a cluster", ErrNoCluster)
	}
	return fromFile(home, o.context)
}

func ofEngine(found *engine, context string) (*rest.Config, string, error) {
	if found == nil {
		return nil, "", fmt.Errorf("%w: no engine runs on this machine; start one: agent-sandbox up --detach", ErrNoCluster)
	}
	return fromFile(filepath.Join(found.folder, "kubeconfig"), context)
}

func fromFile(path, context string) (*rest.Config, string, error) {
	rules := &clientcmd.ClientConfigLoadingRules{Precedence: filepath.SplitList(path)}
	loaded := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: context})
	config, err := loaded.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("%w: kubeconfig %s: %v", ErrNoCluster, path, err)
	}
	namespace, _, err := loaded.Namespace()
	return config, namespace, err
}
