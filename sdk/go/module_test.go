package sandbox

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Another module can use this one as a dependency, as after `go get`.
func TestAnotherModuleCanUseThisOne(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	const module = "github.com/agent-sandbox/agent-sandbox-rs/sdk/go"
	text := strings.Replace(string(content), "module "+module, "module example.org/user", 1)
	text += "\nrequire " + module + " v0.0.0\n\nreplace " + module + " => " + here + "\n"
	sums, err := os.ReadFile("go.sum")
	if err != nil {
		t.Fatal(err)
	}
	program := `package main

import (
	"context"
	"fmt"

	"github.com/agent-sandbox/agent-sandbox-rs/sdk/go"
)

func main() {
	_, err := sandbox.NewClient(context.Background(), sandbox.WithKubeconfig("/nowhere"))
	fmt.Println(err)
}
`
	folder := t.TempDir()
	for name, text := range map[string]string{"go.mod": text, "go.sum": string(sums), "main.go": program} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	run := exec.Command("go", "run", "-mod=mod", ".")
	run.Dir = folder
	output, err := run.CombinedOutput()
	if err != nil || !strings.Contains(string(output), "no cluster") {
		t.Fatalf("%v: %s", err, output)
	}
}
