package sandbox

import (
	"context"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// D-240: run, write, read, exists and list, over every connection that needs no further set-up.
func TestEveryWayToConnect(t *testing.T) {
	testClient(t)
	for name, option := range map[string]Option{
		"tunnel": WithTunnel(""), "pod tunnel": WithPodTunnel(), "direct": WithDirect(engineUnderTest.router, nil, nil),
	} {
		t.Run(name, func(t *testing.T) {
			ctx := testContext(t)
			box := testSandbox(t, testClient(t, option))
			result, err := box.Run(ctx, "echo hi; exit 3")
			if err != nil || string(result.Stdout) != "hi\n" || result.ExitCode != 3 {
				t.Fatalf("%+v %v", result, err)
			}
			if err := box.Files().WriteFile(ctx, "dir/f", []byte("content"), 0); err != nil {
				t.Fatal(err)
			}
			if content, err := box.Files().ReadFile(ctx, "dir/f"); err != nil || string(content) != "content" {
				t.Fatalf("%q %v", content, err)
			}
			if there, err := box.Files().Exists(ctx, "dir/g"); err != nil || there {
				t.Fatalf("%v %v", there, err)
			}
			if list, err := box.Files().List(ctx, "dir"); err != nil || len(list) != 1 || list[0].Name != "f" {
				t.Fatalf("%v %v", list, err)
			}
		})
	}
}

// A sandbox that sleeps because it was idle is woken over every connection.
func TestSleepingSandboxesWake(t *testing.T) {
	testClient(t)
	if engineUnderTest.folder == "" {
		t.Skip("the engine under test is another program's")
	}
	cli := func(words ...string) {
		t.Helper()
		words = append([]string{"--data-dir", engineUnderTest.folder}, words...)
		if output, err := exec.Command(engineProgram(), words...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", words, output)
		}
	}
	for name, option := range map[string]Option{
		"tunnel": WithTunnel(""), "pod": WithPodTunnel(), "direct": WithDirect(engineUnderTest.router, nil, nil),
	} {
		t.Run(name, func(t *testing.T) {
			ctx := testContext(t)
			client := testClient(t, option)
			cli("create", "napper-"+name, "--idle", "1s")
			t.Cleanup(func() { cli("delete", "napper-"+name) })
			box, err := client.Get(ctx, "napper-"+name)
			if err != nil {
				t.Fatal(err)
			}
			if err := box.Files().WriteFile(ctx, "kept", []byte("kept"), 0); err != nil {
				t.Fatal(err)
			}
			for asleep := false; !asleep; time.Sleep(50 * time.Millisecond) {
				found, err := box.Object(ctx)
				if err != nil {
					t.Fatal(err)
				}
				for _, condition := range found.Status.Conditions {
					asleep = asleep || condition.Type == "Suspended" && condition.Status == "True"
				}
			}
			if content, err := box.Files().ReadFile(ctx, "kept"); err != nil || string(content) != "kept" {
				t.Fatalf("%q %v", content, err)
			}
		})
	}
}

// D-241, D-242: the API generates unique names, and typed lists decode.
func TestNamesAreMadeUpAndListsAreTyped(t *testing.T) {
	client := testClient(t)
	first, second := testSandbox(t, client), testSandbox(t, client)
	if first.Claim == second.Claim || !strings.HasPrefix(first.Claim, "sandbox-claim-") {
		t.Fatalf("%q %q", first.Claim, second.Claim)
	}
	claims, err := client.List(testContext(t), "")
	if err != nil || claims.Kind != "SandboxClaimList" && claims.Kind != "" {
		t.Fatalf("%q %v", claims.Kind, err)
	}
	found := 0
	for _, claim := range claims.Items {
		if claim.Name == first.Claim || claim.Name == second.Claim {
			found++
		}
		if claim.Labels[createdByLabel] == "" && claim.Name == first.Claim {
			t.Error("the label that says who asked is missing")
		}
	}
	if found != 2 {
		t.Fatalf("%d of two claims are listed", found)
	}
	boxes, err := client.Sandboxes(testContext(t))
	if err != nil || len(boxes.Items) < 2 || len(boxes.Items[0].Spec.PodTemplate.Spec.Containers) == 0 {
		t.Fatalf("%+v %v", boxes, err)
	}
}

// D-244, D-246: the runtime's dialect, with a listing of the base directory itself.
func TestTheRuntimesDialect(t *testing.T) {
	ctx := testContext(t)
	box := testSandbox(t, testClient(t))
	if result, err := box.Runtime().Execute(ctx, "echo hi"); err != nil || result.Stdout != "hi\n" || result.ExitCode != 0 {
		t.Fatalf("%+v %v", result, err)
	}
	if err := box.Runtime().Upload(ctx, "up.txt", []byte("1")); err != nil {
		t.Fatal(err)
	}
	list, err := box.Runtime().List(ctx, ".")
	// The home of the image host has a virtual environment.
	list = slices.DeleteFunc(list, func(entry Entry) bool { return entry.Name == ".venv" })
	if err != nil || len(list) != 1 || list[0].Name != "up.txt" || list[0].Type != "file" {
		t.Fatalf("%+v %v", list, err)
	}
	if there, err := box.Runtime().Exists(ctx, "up.txt"); err != nil || !there {
		t.Fatalf("%v %v", there, err)
	}
}

// D-249: the next operation reopens a lost tunnel; an operation in progress fails immediately.
func TestATunnelThatDiesIsMadeAnew(t *testing.T) {
	ctx := testContext(t)
	box := testSandbox(t, testClient(t))
	if _, err := box.Run(ctx, "true"); err != nil {
		t.Fatal(err)
	}
	running := make(chan error, 1)
	events, err := box.Stream(ctx, "echo begun; sleep 60")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		var last error
		for event, err := range events.All() {
			if event.Kind == "stdout" {
				cut(box)
			}
			last = err
		}
		running <- last
	}()
	if err := <-running; !errors.Is(err, ErrOutcomeUnknown) {
		t.Fatalf("a command whose tunnel died: %v", err)
	}
	if result, err := box.Run(ctx, "echo again"); err != nil || string(result.Stdout) != "again\n" {
		t.Fatalf("%+v %v", result, err)
	}
}

// cut closes the tunnel's connection to the API.
func cut(box *Sandbox) {
	forward := box.transport.forward
	forward.mutex.Lock()
	defer forward.mutex.Unlock()
	if forward.open != nil {
		forward.open.Close()
	}
}

func TestCancellingEndsTheCommand(t *testing.T) {
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	box := testSandbox(t, testClient(t))
	events, err := box.Stream(ctx, "echo $$; exec sleep 600")
	if err != nil {
		t.Fatal(err)
	}
	pid := ""
	for event := range events.All() {
		if event.Kind == "stdout" {
			pid = strings.TrimSpace(string(event.Data))
			cancel()
			break
		}
	}
	events.Close()
	after := testContext(t)
	for {
		result, err := box.Run(after, "kill -0 "+pid)
		if err != nil {
			t.Fatal(err)
		}
		if result.ExitCode != 0 {
			return
		}
	}
}

func TestWhatDoesNotExistIsSaidToBeSo(t *testing.T) {
	client := testClient(t)
	if _, err := client.Claim(testContext(t), "no-such-thing"); !errors.Is(err, ErrNoSource) {
		t.Fatalf("%v", err)
	}
	if _, err := client.Get(testContext(t), "no-such-thing"); !errors.Is(err, ErrNotFound) {
		t.Fatalf("%v", err)
	}
	if _, err := testSandbox(t, client).Files().ReadFile(testContext(t), "nothing"); !errors.Is(err, ErrNotFound) {
		t.Fatalf("%v", err)
	}
}

// What no waiting can mend ends a wait at once with its reason, and what was made is deleted again.
func TestAPermanentFailureEndsTheWaitWithItsReason(t *testing.T) {
	client := testClient(t)
	ctx := testContext(t)
	const missing = "127.0.0.1:9/missing:v1"
	if err := client.CreatePool(ctx, "broken-go", missing, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.DeletePool(context.Background(), "broken-go") })
	strict := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: "strict-go", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}
	if err := client.kube.core.Post().Resource("namespaces").Body(strict).Do(ctx).Error(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.kube.core.Delete().Resource("namespaces").Name("strict-go").Do(context.Background()) })
	for name, one := range map[string]struct {
		make func() (*Sandbox, error)
		says string
	}{
		"image": {func() (*Sandbox, error) { return client.CreateFromImage(ctx, "bad-go", missing) }, "missing"},
		"claim": {func() (*Sandbox, error) { return client.Claim(ctx, "broken-go") }, "missing"},
		"refused": {func() (*Sandbox, error) {
			return client.CreateFromImage(ctx, "refused-go", "host", InNamespace("strict-go"))
		}, "violates PodSecurity"},
	} {
		t.Run(name, func(t *testing.T) {
			started := time.Now()
			_, err := one.make()
			if !errors.Is(err, ErrClaimFailed) || !strings.Contains(err.Error(), one.says) {
				t.Fatalf("%v", err)
			}
			if took := time.Since(started); took > time.Minute {
				t.Fatalf("it waited %v", took)
			}
		})
	}
	boxes, err := client.Sandboxes(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, box := range boxes.Items {
		if box.Name == "bad-go" && box.DeletionTimestamp == nil {
			t.Fatal("the sandbox that cannot start is still there")
		}
	}
}
