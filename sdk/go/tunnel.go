package sandbox

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
)

const (
	routerService   = "sandbox-router-svc"
	routerNamespace = "agent-sandbox-system"
	routerPort      = 8080
)

// forwarder opens streams to ports of one Pod over one connection to the API. It replaces a lost connection, and also a connection to a Pod
// that was replaced: an API server keeps that open, but every stream on it ends immediately.
type forwarder struct {
	kube           *kube
	namespace, pod string

	mutex sync.Mutex
	open  *session
	next  int
}

// session is one connection to the API. A retired session is closed with its last stream.
type session struct {
	httpstream.Connection
	streams int
	retired bool
}

func (f *forwarder) dial(ctx context.Context, port int) (net.Conn, error) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	for attempt := 0; ; attempt++ {
		fresh := f.open == nil
		if fresh {
			opened, err := f.connect()
			if err != nil {
				return nil, fmt.Errorf("%w: Pod %s/%s: %w", ErrPortForward, f.namespace, f.pod, err)
			}
			f.open = &session{Connection: opened}
		}
		conn, err := f.stream(port)
		if err == nil {
			f.open.streams++
			return conn, nil
		}
		f.open.Close()
		f.open = nil
		if fresh || attempt > 1 || ctx.Err() != nil {
			return nil, fmt.Errorf("%w: port %d of Pod %s/%s: %w", ErrPortForward, port, f.namespace, f.pod, err)
		}
	}
}

// release records the end of a stream. A stream that ended without any data retires its connection.
func (f *forwarder) release(s *session, wordless bool) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	s.streams--
	if wordless && f.open == s {
		f.open = nil
	}
	s.retired = s.retired || wordless
	if s.retired && s.streams == 0 {
		s.Close()
	}
}

// connect upgrades a connection to the API: to a WebSocket where supported, otherwise to SPDY.
func (f *forwarder) connect() (httpstream.Connection, error) {
	address := f.kube.core.Get().Namespace(f.namespace).Resource("pods").Name(f.pod).SubResource("portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(f.kube.config)
	if err != nil {
		return nil, err
	}
	old := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, address)
	dialer := httpstream.Dialer(old)
	if websocket, err := portforward.NewSPDYOverWebsocketDialer(address, f.kube.config); err == nil {
		dialer = portforward.NewFallbackDialer(websocket, old, func(err error) bool {
			return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
		})
	}
	conn, _, err := dialer.Dial(portforward.PortForwardProtocolV1Name)
	return conn, err
}

func (f *forwarder) stream(port int) (net.Conn, error) {
	f.next++
	headers := http.Header{}
	headers.Set(corev1.PortHeader, strconv.Itoa(port))
	headers.Set(corev1.PortForwardRequestIDHeader, strconv.Itoa(f.next))
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	failures, err := f.open.CreateStream(headers)
	if err != nil {
		return nil, err
	}
	// Nothing is written to the error stream; data from the other side is an error and ends the connection.
	failures.Close()
	headers.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := f.open.CreateStream(headers)
	if err != nil {
		return nil, err
	}
	conn := &streamConn{Stream: data, forwarder: f, session: f.open, failures: failures}
	go func() {
		if words, _ := io.ReadAll(failures); len(words) > 0 {
			data.Reset()
		}
	}()
	return conn, nil
}

// streamConn is a stream as a net.Conn. Deadlines have no effect: the HTTP client enforces timeouts.
type streamConn struct {
	httpstream.Stream
	forwarder       *forwarder
	session         *session
	failures        httpstream.Stream
	once            sync.Once
	heard, wordless atomic.Bool
}

func (s *streamConn) Read(into []byte) (int, error) {
	count, err := s.Stream.Read(into)
	if count > 0 {
		s.heard.Store(true)
	} else if err != nil && !s.heard.Load() {
		s.wordless.Store(true)
	}
	return count, err
}

func (s *streamConn) Close() error {
	s.once.Do(func() {
		s.Stream.Close()
		s.Stream.Reset()
		s.session.RemoveStreams(s.Stream, s.failures)
		s.forwarder.release(s.session, s.wordless.Load())
	})
	return nil
}

type forwardAddress string

func (forwardAddress) Network() string  { return "portforward" }
func (a forwardAddress) String() string { return string(a) }

func (s *streamConn) LocalAddr() net.Addr              { return forwardAddress("local") }
func (s *streamConn) RemoteAddr() net.Addr             { return forwardAddress("pod") }
func (s *streamConn) SetDeadline(time.Time) error      { return nil }
func (s *streamConn) SetReadDeadline(time.Time) error  { return nil }
func (s *streamConn) SetWriteDeadline(time.Time) error { return nil }

// router finds the running Pod behind the router's Service, in the given namespaces.
func (k *kube) router(ctx context.Context, namespaces []string) (namespace, pod string, port int, err error) {
	for _, namespace := range namespaces {
		service := &corev1.Service{}
		err := k.core.Get().Namespace(namespace).Resource("services").Name(routerService).Do(ctx).Into(service)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return "", "", 0, apiError("look for the router", err)
		}
		pods := &corev1.PodList{}
		selector := metav1.ListOptions{LabelSelector: labels.SelectorFromSet(service.Spec.Selector).String()}
		if err := k.core.Get().Namespace(namespace).Resource("pods").VersionedParams(&selector, metav1.ParameterCodec).Do(ctx).Into(pods); err != nil {
			return "", "", 0, apiError("look for the router's Pod", err)
		}
		for _, pod := range pods.Items {
			if pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
				return namespace, pod.Name, targetPort(service, &pod), nil
			}
		}
	}
	return "", "", 0, fmt.Errorf("%w: no Service %s with a running Pod in %v; install the router or name its namespace", ErrPortForward, routerService, namespaces)
}

func targetPort(service *corev1.Service, pod *corev1.Pod) int {
	for _, port := range service.Spec.Ports {
		if port.Port != routerPort {
			continue
		}
		if port.TargetPort.Type == intstr.Int && port.TargetPort.IntVal != 0 {
			return int(port.TargetPort.IntVal)
		}
		for _, container := range pod.Spec.Containers {
			for _, named := range container.Ports {
				if named.Name == port.TargetPort.StrVal && named.Name != "" {
					return int(named.ContainerPort)
				}
			}
		}
	}
	return routerPort
}
