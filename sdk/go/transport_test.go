package sandbox

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	agents "github.com/agent-sandbox/agent-sandbox-rs/sdk/go/api/v1beta1"
)

// against returns a sandbox behind a fake router.
func against(t *testing.T, answer http.HandlerFunc) *Sandbox {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	o := options{port: 8888, perAttempt: time.Minute, connection: connection{kind: "direct", url: server.URL}}
	transport, err := newTransport(nil, "box", "default", &o)
	if err != nil {
		t.Fatal(err)
	}
	return &Sandbox{Name: "box", Namespace: "default", transport: transport}
}

// D-243: the timeout sent to the router is the smaller of the time left and that of one attempt.
func TestTheRouterIsToldHowLongWeWait(t *testing.T) {
	var told atomic.Value
	box := against(t, func(w http.ResponseWriter, r *http.Request) {
		told.Store(r.Header.Get("X-Sandbox-Timeout"))
		io.WriteString(w, `{"exists": true}`)
	})
	for limit, want := range map[time.Duration]float64{10 * time.Second: 10, 120 * time.Second: 60} {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		if _, err := box.Runtime().Exists(ctx, "x"); err != nil {
			t.Fatal(err)
		}
		cancel()
		got, err := strconv.ParseFloat(told.Load().(string), 64)
		if err != nil || got > want || got < want-1 {
			t.Fatalf("%s: told %v, wanted at most %v", limit, told.Load(), want)
		}
	}
}

// D-244: a response without an exit code does not mean success.
func TestAnEmptyAnswerIsNoSuccess(t *testing.T) {
	box := against(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, `{}`) })
	if result, err := box.Runtime().Execute(context.Background(), "true"); err != nil || result.ExitCode != -1 {
		t.Fatalf("%+v %v", result, err)
	}
}

// D-245, D-246: unknown types are left out, and a dot is one segment that no proxy normalises.
func TestListings(t *testing.T) {
	var path atomic.Value
	box := against(t, func(w http.ResponseWriter, r *http.Request) {
		path.Store(r.URL.EscapedPath())
		io.WriteString(w, `[{"name":"a","type":"file","size":1},{"name":"l","type":"symlink"},{"name":"d","type":"directory"}]`)
	})
	list, err := box.Runtime().List(context.Background(), ".")
	if err != nil || len(list) != 2 || list[0].Name != "a" || list[1].Name != "d" {
		t.Fatalf("%+v %v", list, err)
	}
	if path.Load() != "/list/%2E" {
		t.Fatal(path.Load())
	}
}

// D-247: sandboxd's file API takes the whole path as one segment; the client rejects a path that leads out.
func TestSandboxdPaths(t *testing.T) {
	var seen atomic.Value
	box := against(t, func(w http.ResponseWriter, r *http.Request) { seen.Store(r.Method + " " + r.URL.EscapedPath()) })
	if err := box.Sandboxd(0).Write(context.Background(), "dir/f", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if seen.Load() != "PUT /v1/files/dir%2Ff" {
		t.Fatal(seen.Load())
	}
	seen.Store("nothing")
	if err := box.Sandboxd(0).Write(context.Background(), "../x", nil); err == nil || seen.Load() != "nothing" {
		t.Fatalf("%v %v", err, seen.Load())
	}
}

// D-248: errors contain the daemon's own message.
func TestErrorsAreToldInTheDaemonsWords(t *testing.T) {
	box := against(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusConflict)
		io.WriteString(w, `{"code":"CONFLICT","message":"m"}`)
	})
	err := box.Sandboxd(0).Write(context.Background(), "x", nil)
	if err == nil || !strings.Contains(err.Error(), "CONFLICT: m") {
		t.Fatal(err)
	}
}

func TestOnlyIdlenessAndPoliciesLetRequestsWakeASandbox(t *testing.T) {
	for _, one := range []struct {
		wake, by string
		want     bool
	}{
		{"", "", false}, {"", "idle", true}, {"IfIdle", "idle", true}, {"Always", "", true}, {"Never", "idle", false}, {"x", "idle", false},
	} {
		box := &agents.Sandbox{}
		box.Annotations = map[string]string{wakeAnnotation: one.wake, suspendedByAnnotation: one.by}
		if got := wakesOnRequest(box); got != one.want {
			t.Fatalf("%+v: %v", one, got)
		}
	}
}

func TestReadsAreRepeatedAndCommandsAreNot(t *testing.T) {
	var asked atomic.Int32
	box := against(t, func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		io.WriteString(w, `{"exists": true}`)
	})
	if there, err := box.Runtime().Exists(context.Background(), "x"); err != nil || !there || asked.Load() != 2 {
		t.Fatalf("%v %v %d", there, err, asked.Load())
	}
	asked.Store(0)
	var refused *HTTPError
	if _, err := box.Runtime().Execute(context.Background(), "true"); !errors.As(err, &refused) || refused.Status != 503 || asked.Load() != 1 {
		t.Fatalf("%v %d", err, asked.Load())
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	var asked atomic.Int32
	box := against(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	})
	if _, err := box.Runtime().Exists(context.Background(), "x"); err == nil || asked.Load() != 1 {
		t.Fatalf("%v %d", err, asked.Load())
	}
}

func TestAddresses(t *testing.T) {
	if got := selectPodIP([]string{"fd00::5", "10.0.0.5"}); got != "10.0.0.5" {
		t.Fatal(got)
	}
	for name, want := range map[string]bool{"gw.example.com": true, "2130706433": false, "0x7f.1": false, "a_b": false, "-a": false} {
		if isHostName(name) != want {
			t.Errorf("%q", name)
		}
	}
	if ctx := WithTraceparent(context.Background(), "nonsense"); traceparent(ctx) != "" {
		t.Error("nonsense is no trace")
	}
}
