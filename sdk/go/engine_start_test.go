package sandbox

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// startingProgram makes the test's own program start a client of the engine on the folder that the variable names, and nothing else.
const startingProgram = "AGENT_SANDBOX_TEST_START"

func init() {
	if folder := os.Getenv(startingProgram); folder != "" {
		if _, err := NewClient(context.Background(), WithLocal(folder)); err != nil {
			os.Stderr.WriteString(err.Error())
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// Of several programs that find no engine one starts it, and says so; an engine started this way ends when it is not used.
func TestOneOfManyStartsTheEngineWhichEndsWhenUnused(t *testing.T) {
	if _, err := os.Stat(engineProgram()); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip("no agent-sandbox to test with: cargo build -p agent-sandbox, or AGENT_SANDBOX_BIN")
	}
	folder := filepath.Join(t.TempDir(), "data")
	t.Cleanup(func() { exec.Command(engineProgram(), "--data-dir", folder, "down", "--purge", "--yes").Run() })
	const programs = 3
	said := make(chan string, programs)
	for range programs {
		command := exec.Command(os.Args[0])
		command.Env = append(os.Environ(), startingProgram+"="+folder, "AGENT_SANDBOX_BIN="+engineProgram(), "AGENT_SANDBOX_IDLE_TIMEOUT=2s")
		go func() {
			output, err := command.CombinedOutput()
			if err != nil {
				output = append(output, err.Error()...)
			}
			said <- string(output)
		}()
	}
	all := ""
	for range programs {
		all += <-said
	}
	if note := "note: started the engine on this machine; it ends when it is not used any more, or with `agent-sandbox down`\n"; all != note {
		t.Fatalf("%q", all)
	}
	for deadline := time.Now().Add(time.Minute); findEngine(folder) != nil; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the engine does not end")
		}
	}
	log, err := os.ReadFile(filepath.Join(folder, "up.log"))
	if err != nil || !strings.Contains(string(log), "nobody uses this engine") {
		t.Fatalf("%v: %s", err, log)
	}
}

// A program that is not there is named, and the folder is not left locked.
func TestAProgramThatIsMissingIsNamed(t *testing.T) {
	t.Setenv("AGENT_SANDBOX_BIN", "/no/such/program")
	folder := t.TempDir()
	for range 2 {
		_, err := NewClient(testContext(t), WithLocal(folder))
		if err == nil || !strings.Contains(err.Error(), "/no/such/program") || !strings.Contains(err.Error(), "AGENT_SANDBOX_BIN") {
			t.Fatalf("%v", err)
		}
	}
}

// Where nothing names a cluster, an engine that has run before wins over ~/.kube/config, which may be of another cluster, and is started.
func TestAnEngineThatWasUsedWinsOverTheDefaultKubeconfig(t *testing.T) {
	home, data := t.TempDir(), t.TempDir()
	for name, value := range map[string]string{
		"HOME": home, "AGENT_SANDBOX_DATA_DIR": data, "AGENT_SANDBOX_BIN": "/no/such/program", "KUBECONFIG": "", "KUBERNETES_SERVICE_HOST": "",
	} {
		t.Setenv(name, value)
	}
	os.Mkdir(filepath.Join(home, ".kube"), 0o700)
	config := `{"apiVersion": "v1", "kind": "Config", "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c"}}],
		"clusters": [{"name": "c", "cluster": {"server": "https://production.example"}}]}`
	if err := os.WriteFile(filepath.Join(home, ".kube", "config"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	found, _, err := cluster(context.Background(), &options{})
	if err != nil || found.Host != "https://production.example" {
		t.Fatalf("a machine without an engine: %v, %v", found, err)
	}
	if err := os.Mkdir(filepath.Join(data, "api"), 0o700); err != nil {
		t.Fatal(err)
	}
	if found, _, err = cluster(context.Background(), &options{}); err == nil || !strings.Contains(err.Error(), "/no/such/program") {
		t.Fatalf("an engine was not started, but %v, %v", found, err)
	}
}
