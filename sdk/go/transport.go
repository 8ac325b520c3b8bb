package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// pauses are the delays before the second and later attempts of a request that may be repeated.
var pauses = []time.Duration{50 * time.Millisecond, 300 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second}

const maxError = 64 * 1024

// transport sends requests to one sandbox.
type transport struct {
	kube            *kube
	name, namespace string
	port            int
	perAttempt      time.Duration
	connection      connection
	http            *http.Client

	mutex   sync.Mutex
	base    string
	forward *forwarder
}

func newTransport(k *kube, name, namespace string, o *options) (*transport, error) {
	t := &transport{kube: k, name: name, namespace: namespace, port: o.port, perAttempt: o.perAttempt, connection: o.connection}
	inner := &http.Transport{
		MaxIdleConnsPerHost: 32, IdleConnTimeout: time.Minute, TLSClientConfig: o.connection.tls,
		DialContext: (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
	}
	for name := range o.connection.headers {
		if strings.HasPrefix(strings.ToLower(name), "x-sandbox-") {
			return nil, fmt.Errorf("header %q is reserved: the SDK sets X-Sandbox-* itself", name)
		}
	}
	switch o.connection.kind {
	case "tunnel":
		inner.DialContext = t.dialRouter
		t.base = "http://localhost"
	case "pod":
		inner.DialContext = t.dialPod
	case "direct":
		if _, err := url.ParseRequestURI(o.connection.url); err != nil {
			return nil, fmt.Errorf("the router's address: %w", err)
		}
		t.base = strings.TrimRight(o.connection.url, "/")
	}
	t.http = &http.Client{Transport: inner, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return t, nil
}

func (t *transport) routed() bool {
	return t.connection.kind == "tunnel" || t.connection.kind == "gateway" || t.connection.kind == "direct"
}

func (t *transport) dialRouter(ctx context.Context, _, _ string) (net.Conn, error) {
	first := t.connection.routerNamespace
	if first == "" {
		first = routerNamespace
	}
	namespaces := []string{first}
	if first != t.namespace {
		namespaces = append(namespaces, t.namespace)
	}
	namespace, pod, port, err := t.kube.router(ctx, namespaces)
	if err != nil {
		return nil, err
	}
	return t.through(namespace, pod).dial(ctx, port)
}

func (t *transport) dialPod(ctx context.Context, _, address string) (net.Conn, error) {
	found, err := t.kube.sandbox(ctx, t.namespace, t.name)
	if err != nil {
		return nil, err
	}
	if found.Spec.OperatingMode == "Suspended" && wakesOnRequest(found) {
		if found, err = t.kube.wake(ctx, found); err != nil {
			return nil, err
		}
	}
	if found.Spec.OperatingMode == "Suspended" {
		return nil, fmt.Errorf("%q is suspended, resume it first: %w", t.name, ErrNotReady)
	}
	pod := found.Annotations[podNameAnnotation]
	if pod == "" {
		pod = t.name
	}
	_, text, _ := net.SplitHostPort(address)
	port, err := strconv.Atoi(text)
	if err != nil {
		return nil, err
	}
	return t.through(t.namespace, pod).dial(ctx, port)
}

// through returns the forwarder of a Pod; there is one per Pod.
func (t *transport) through(namespace, pod string) *forwarder {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.forward == nil || t.forward.namespace != namespace || t.forward.pod != pod {
		t.forward = &forwarder{kube: t.kube, namespace: namespace, pod: pod}
	}
	return t.forward
}

// forget drops cached addresses that may have changed.
func (t *transport) forget() {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.connection.kind == "gateway" || t.connection.kind == "in-cluster" {
		t.base = ""
	}
}

func (t *transport) baseURL(ctx context.Context, port int) (string, error) {
	t.mutex.Lock()
	base := t.base
	t.mutex.Unlock()
	switch {
	case t.connection.kind == "pod":
		return fmt.Sprintf("http://localhost:%d", port), nil
	case base != "" && t.routed():
		return base, nil
	case base != "":
		return fmt.Sprintf("%s:%d", base, port), nil
	case t.connection.kind == "gateway":
		address, err := t.kube.gatewayAddress(ctx, t.connection.gateway)
		if err != nil {
			return "", err
		}
		base = "http://" + bracketed(address)
		t.remember(base)
		return base, nil
	}
	host := fmt.Sprintf("%s.%s.svc.cluster.local", t.name, t.namespace)
	if found, err := t.kube.sandbox(ctx, t.namespace, t.name); err == nil {
		if address := selectPodIP(found.Status.PodIPs); address != "" {
			host = bracketed(address)
			t.remember("http://" + host)
		}
	}
	return fmt.Sprintf("http://%s:%d", host, port), nil
}

func (t *transport) remember(base string) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.base = base
}

func bracketed(host string) string {
	if strings.Contains(host, ":") {
		return "[" + host + "]"
	}
	return host
}

// selectPodIP prefers IPv4, in its shortest form.
func selectPodIP(addresses []string) string {
	first := ""
	for _, text := range addresses {
		address, err := netip.ParseAddr(text)
		if err != nil {
			continue
		}
		address = address.Unmap()
		if address.Is4() {
			return address.String()
		}
		if first == "" {
			first = address.String()
		}
	}
	return first
}

// call is one request.
type call struct {
	method, path, operation string
	headers                 http.Header
	body                    []byte
	// stream is a body that can be sent only once; such a request is never repeated.
	stream io.Reader
	// repeat means that the request is idempotent.
	repeat bool
	// patient calls wait for a response as long as the context allows.
	patient bool
	accept  []int
	port    int
}

func (t *transport) send(ctx context.Context, c call) (*http.Response, error) {
	for attempt := 0; ; attempt++ {
		answer, sent, err := t.attempt(ctx, c)
		if err == nil && c.repeat && answer.StatusCode >= 500 && answer.StatusCode <= 504 && answer.StatusCode != 501 && attempt < len(pauses) {
			io.Copy(io.Discard, io.LimitReader(answer.Body, maxError))
			answer.Body.Close()
			err = errors.New(answer.Status)
			sent = true
		} else if err == nil {
			return t.check(answer, c)
		}
		switch {
		case errors.Is(err, ErrNotFound), errors.Is(err, ErrNotReady):
			return nil, fmt.Errorf("%s: %w", c.operation, err)
		case ctx.Err() != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
			return nil, fmt.Errorf("%s in %q: %w: %w", c.operation, t.name, ErrTimeout, err)
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case sent && !c.repeat:
			return nil, fmt.Errorf("%s in %q: %w: look at its effects before trying again: %w", c.operation, t.name, ErrOutcomeUnknown, err)
		case attempt >= len(pauses) || c.stream != nil:
			return nil, fmt.Errorf("%s in %q: %w: is the sandbox running and the router reachable? %w", c.operation, t.name, ErrDisconnected, err)
		}
		t.forget()
		select {
		case <-ctx.Done():
		case <-time.After(pauses[attempt]):
		}
	}
}

// attempt sends the request once, and reports whether any of it may have been sent.
func (t *transport) attempt(ctx context.Context, c call) (*http.Response, bool, error) {
	port := c.port
	if port == 0 {
		port = t.port
	}
	base, err := t.baseURL(ctx, port)
	if err != nil {
		return nil, false, err
	}
	body := c.stream
	if body == nil && c.body != nil {
		body = bytes.NewReader(c.body)
	}
	// The timeout applies to the start of the response; reading it may take longer.
	attempting, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(t.perAttempt, func() {
		if !c.patient && c.stream == nil {
			cancel(fmt.Errorf("no answer after %s", t.perAttempt))
		}
	})
	request, err := http.NewRequestWithContext(attempting, c.method, base+c.path, body)
	if err != nil {
		cancel(err)
		return nil, false, err
	}
	for name, values := range t.connection.headers {
		request.Header[name] = values
	}
	for name, values := range c.headers {
		request.Header[name] = values
	}
	if t.routed() {
		request.Header.Set("X-Sandbox-ID", t.name)
		request.Header.Set("X-Sandbox-Namespace", t.namespace)
		request.Header.Set("X-Sandbox-Port", strconv.Itoa(port))
		request.Header.Set("X-Sandbox-Timeout", seconds(ctx, t.perAttempt))
	}
	if parent := traceparent(ctx); parent != "" {
		request.Header.Set("traceparent", parent)
	}
	answer, err := t.http.Do(request)
	timer.Stop()
	if err != nil {
		cancel(err)
		var failed *net.OpError
		unsent := errors.Is(err, ErrPortForward) || errors.Is(err, ErrNotFound) || errors.Is(err, ErrNotReady) ||
			(errors.As(err, &failed) && failed.Op == "dial")
		return nil, !unsent, err
	}
	answer.Body = &closing{answer.Body, cancel}
	return answer, true, nil
}

// closing ends the attempt's context with the body.
type closing struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (c *closing) Close() error {
	err := c.ReadCloser.Close()
	c.cancel(nil)
	return err
}

// seconds returns the time left, at most that of one attempt, as the shortest decimal.
func seconds(ctx context.Context, perAttempt time.Duration) string {
	left := perAttempt
	if deadline, ok := ctx.Deadline(); ok {
		left = min(left, time.Until(deadline))
	}
	return strconv.FormatFloat(max(left.Round(time.Millisecond).Seconds(), 0.001), 'f', -1, 64)
}

func (t *transport) check(answer *http.Response, c call) (*http.Response, error) {
	for _, status := range c.accept {
		if answer.StatusCode == status {
			return answer, nil
		}
	}
	if answer.StatusCode < 300 {
		return answer, nil
	}
	defer answer.Body.Close()
	content, _ := io.ReadAll(io.LimitReader(answer.Body, maxError))
	var said struct{ Code, Message, Detail string }
	json.Unmarshal(content, &said)
	message := said.Message
	if message == "" {
		message = said.Detail
	}
	if message == "" {
		message = strings.TrimSpace(string(content[:min(len(content), 512)]))
	}
	if said.Detail != "" && said.Code == "" && strings.HasPrefix(c.path, prefix) && answer.StatusCode == 404 {
		return nil, fmt.Errorf("%s: %w: its image needs our sandboxd", c.operation, ErrUnsupportedByRuntime)
	}
	return nil, &HTTPError{Operation: c.operation, Status: answer.StatusCode, Code: said.Code, Message: message}
}

// fetch sends a request and decodes the whole response.
func (t *transport) fetch(ctx context.Context, c call, into any) error {
	answer, err := t.send(ctx, c)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	content, err := readLimited(answer, 256<<20)
	if err != nil {
		return fmt.Errorf("%s: %w", c.operation, err)
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(content, into); err != nil {
		return fmt.Errorf("%s: %w: %v", c.operation, ErrUnsupportedByRuntime, err)
	}
	return nil
}

// readLimited reads the whole body, or fails before reading when its announced length exceeds the limit.
func readLimited(answer *http.Response, limit int64) ([]byte, error) {
	if answer.ContentLength > limit {
		return nil, fmt.Errorf("%w: %d bytes, %d are allowed; stream it instead", ErrTooLarge, answer.ContentLength, limit)
	}
	content, err := io.ReadAll(io.LimitReader(answer.Body, limit+1))
	if err == nil && int64(len(content)) > limit {
		return nil, fmt.Errorf("%w: more than %d bytes; stream it instead", ErrTooLarge, limit)
	}
	return content, err
}

// gatewayAddress waits for the first valid address of a Gateway.
func (k *kube) gatewayAddress(ctx context.Context, o gatewayOptions) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	options := metav1.ListOptions{FieldSelector: "metadata.name=" + o.name, Watch: true}
	for {
		changes, err := k.gateways.Get().Namespace(o.namespace).Resource("gateways").
			VersionedParams(&options, metav1.ParameterCodec).Watch(ctx)
		if err == nil {
			for change := range changes.ResultChan() {
				if change.Type == watch.Deleted {
					continue
				}
				if address := firstAddress(change.Object); address != "" {
					changes.Stop()
					return address, nil
				}
			}
			changes.Stop()
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("Gateway %q in namespace %q has no address: %w", o.name, o.namespace, ErrTimeout)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func firstAddress(object any) string {
	gateway, ok := object.(*unstructured.Unstructured)
	if !ok {
		return ""
	}
	addresses, _, _ := unstructured.NestedSlice(gateway.Object, "status", "addresses")
	for _, entry := range addresses {
		if fields, ok := entry.(map[string]any); ok {
			value, _ := fields["value"].(string)
			if _, err := netip.ParseAddr(value); err == nil || isHostName(value) {
				return value
			}
		}
	}
	return ""
}

// isHostName reports whether the text is a DNS name; some resolvers would read a name of digits alone as an address.
func isHostName(text string) bool {
	if text == "" || len(text) > 253 {
		return false
	}
	numbers := true
	for _, label := range strings.Split(text, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for _, letter := range label {
			if !(letter >= 'a' && letter <= 'z' || letter >= 'A' && letter <= 'Z' || letter >= '0' && letter <= '9' || letter == '-') {
				return false
			}
		}
		if _, err := strconv.ParseUint(label, 0, 64); err != nil {
			numbers = false
		}
	}
	return !numbers
}
