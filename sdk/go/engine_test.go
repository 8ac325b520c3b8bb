package sandbox

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// engineUnderTest is one `agent-sandbox up` for all tests of a run, in its own folder.
var engineUnderTest struct {
	sync.Once
	folder, router string
	process        *exec.Cmd
	problem        string
}

func TestMain(m *testing.M) {
	code := m.Run()
	if process := engineUnderTest.process; process != nil {
		process.Process.Signal(syscall.SIGINT)
		process.Wait()
		exec.Command(engineProgram(), "--data-dir", engineUnderTest.folder, "down", "--purge", "--yes").Run()
		os.RemoveAll(engineUnderTest.folder)
	}
	os.Exit(code)
}

func engineProgram() string {
	if program := os.Getenv("AGENT_SANDBOX_BIN"); program != "" {
		return program
	}
	program, _ := filepath.Abs("../../target/debug/agent-sandbox")
	return program
}

func startEngineUnderTest() {
	e := &engineUnderTest
	if _, err := os.Stat(engineProgram()); err != nil {
		e.problem = "no agent-sandbox to test against: cargo build -p agent-sandbox, or AGENT_SANDBOX_BIN"
		return
	}
	folder, err := os.MkdirTemp("", "agent-sandbox-go-")
	if err != nil {
		e.problem = err.Error()
		return
	}
	e.folder = folder
	e.process = exec.Command(engineProgram(), "--data-dir", folder, "up", "--api-listen", "127.0.0.1:0", "--router-listen", "127.0.0.1:0", "--router-auth", "none")
	if err := e.process.Start(); err != nil {
		e.problem = err.Error()
		return
	}
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if content, err := os.ReadFile(filepath.Join(folder, "up.json")); err == nil {
			var state struct{ Router string }
			json.Unmarshal(content, &state)
			e.router = state.Router
			return
		}
	}
	e.problem = "`agent-sandbox up` did not become ready"
}

// testClient is a client of the engine under test. Without an engine the test is skipped, in CI it fails.
func testClient(t *testing.T, options ...Option) *Client {
	t.Helper()
	if way := os.Getenv("AGENT_SANDBOX_TEST_CONNECTION"); way != "" {
		return givenClient(t, way)
	}
	engineUnderTest.Do(startEngineUnderTest)
	if problem := engineUnderTest.problem; problem != "" {
		if os.Getenv("CI") != "" {
			t.Fatal(problem)
		}
		t.Skip(problem)
	}
	kubeconfig := WithKubeconfig(filepath.Join(engineUnderTest.folder, "kubeconfig"))
	client, err := NewClient(context.Background(), append([]Option{kubeconfig}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// givenClient is a client of an engine that already runs and that KUBECONFIG refers to (tests/python/second_engine.py).
func givenClient(t *testing.T, way string) *Client {
	t.Helper()
	if way != "pod" {
		t.Fatalf("AGENT_SANDBOX_TEST_CONNECTION is %q, which this test does not know", way)
	}
	client, err := NewClient(context.Background(), WithKubeconfig(os.Getenv("KUBECONFIG")), WithPodTunnel())
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	t.Cleanup(cancel)
	return ctx
}

const readyMade = "python-sandbox-template"

func testSandbox(t *testing.T, client *Client) *Sandbox {
	t.Helper()
	box, err := client.Claim(testContext(t), readyMade)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := box.Delete(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return box
}
