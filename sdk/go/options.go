package sandbox

import (
	"crypto/tls"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
)

// Option configures a Client.
type Option func(*options)

type options struct {
	kubeconfig, context, namespace, dataDir string
	local                                   bool
	rest                                    *rest.Config
	connection                              connection
	port                                    int
	perAttempt                              time.Duration
}

type connection struct {
	kind            string
	routerNamespace string
	url             string
	headers         http.Header
	tls             *tls.Config
	gateway         gatewayOptions
}

type gatewayOptions struct {
	name, namespace string
	timeout         time.Duration
}

// WithKubeconfig names a kubeconfig file.
func WithKubeconfig(path string) Option { return func(o *options) { o.kubeconfig = path } }

// WithContext names a context of the kubeconfig.
func WithContext(name string) Option { return func(o *options) { o.context = name } }

// WithRESTConfig uses an existing configuration.
func WithRESTConfig(config *rest.Config) Option { return func(o *options) { o.rest = config } }

// WithNamespace sets the namespace in which names are looked up; by default the kubeconfig's namespace, else "default".
func WithNamespace(name string) Option { return func(o *options) { o.namespace = name } }

// WithLocal uses the engine on this machine, and starts one when none runs. The folder is the engine's data folder; "" means the default one.
func WithLocal(dataDir string) Option {
	return func(o *options) { o.local, o.dataDir = true, dataDir }
}

// WithServerPort sets the daemon's port inside the sandbox, instead of 8888.
func WithServerPort(port int) Option { return func(o *options) { o.port = port } }

// WithPerAttemptTimeout sets the timeout of one attempt for the response to begin, instead of 60 s.
func WithPerAttemptTimeout(limit time.Duration) Option {
	return func(o *options) { o.perAttempt = limit }
}

// WithTunnel goes through the API's port-forward to the router, looked for in the namespace given (agent-sandbox-system for ""), then in the
// sandbox's own. This is the default.
func WithTunnel(routerNamespace string) Option {
	return func(o *options) { o.connection = connection{kind: "tunnel", routerNamespace: routerNamespace} }
}

// WithPodTunnel goes through the API's port-forward directly to the sandbox's Pod; no router is needed.
func WithPodTunnel() Option { return func(o *options) { o.connection = connection{kind: "pod"} } }

// WithGateway goes through a Gateway (Gateway API) in front of the router.
func WithGateway(name, namespace string, timeout time.Duration) Option {
	return func(o *options) {
		o.connection = connection{kind: "gateway", gateway: gatewayOptions{name, namespace, timeout}}
	}
}

// WithDirect goes to a router at a known address. Headers and TLS settings may be nil; headers that start with X-Sandbox- are reserved for the SDK.
func WithDirect(url string, headers http.Header, config *tls.Config) Option {
	return func(o *options) { o.connection = connection{kind: "direct", url: url, headers: headers, tls: config} }
}

// WithInCluster goes directly to the Pod from inside the cluster: by its address, or by the sandbox's DNS name where the status has no address.
func WithInCluster() Option {
	return func(o *options) { o.connection = connection{kind: "in-cluster"} }
}

// ClaimOption configures a claim.
type ClaimOption func(*claimOptions)

type claimOptions struct {
	namespace, name string
	template        bool
	env             map[string]string
	labels          map[string]string
	podLabels       map[string]string
	podAnnotations  map[string]string
	expiresAfter    time.Duration
	readyTimeout    time.Duration
}

// ClaimName sets the name of the claim; the SDK never deletes such a claim by itself.
func ClaimName(name string) ClaimOption { return func(o *claimOptions) { o.name = name } }

// InNamespace overrides the client's namespace.
func InNamespace(name string) ClaimOption { return func(o *claimOptions) { o.namespace = name } }

// FromTemplate means that the name is that of a template.
func FromTemplate() ClaimOption { return func(o *claimOptions) { o.template = true } }

// ClaimEnv sets environment variables; with any of them the claim gets a new sandbox.
func ClaimEnv(env map[string]string) ClaimOption { return func(o *claimOptions) { o.env = env } }

// ClaimLabels are put on the claim.
func ClaimLabels(labels map[string]string) ClaimOption {
	return func(o *claimOptions) { o.labels = labels }
}

// PodMetadata is put on the running Pod.
func PodMetadata(labels, annotations map[string]string) ClaimOption {
	return func(o *claimOptions) { o.podLabels, o.podAnnotations = labels, annotations }
}

// ExpiresAfter schedules the deletion of the sandbox after that time, whether or not this program still runs.
func ExpiresAfter(time time.Duration) ClaimOption {
	return func(o *claimOptions) { o.expiresAfter = time }
}

// ReadyTimeout sets the timeout for the sandbox to become ready, instead of 180 s.
func ReadyTimeout(limit time.Duration) ClaimOption {
	return func(o *claimOptions) { o.readyTimeout = limit }
}

// RunOption configures a command.
type RunOption func(*command)

// Env sets an environment variable.
func Env(name, value string) RunOption {
	return func(c *command) {
		if c.Env == nil {
			c.Env = map[string]string{}
		}
		c.Env[name] = value
	}
}

// Cwd is the working directory, relative to the sandbox's base directory.
func Cwd(folder string) RunOption { return func(c *command) { c.Cwd = folder } }

// User is a name or number, optionally user:group.
func User(user string) RunOption { return func(c *command) { c.User = user } }

// Limit sets the command's timeout, after which the sandbox ends it with exit code 124.
func Limit(time time.Duration) RunOption {
	return func(c *command) { c.TimeoutSeconds = time.Seconds() }
}

// Stdin is text for standard input, which is then closed.
func Stdin(text string) RunOption { return func(c *command) { c.Stdin = &text } }

// Terminal runs the command in a terminal of that size.
func Terminal(columns, rows int) RunOption {
	return func(c *command) { c.Terminal = &terminalSize{Columns: columns, Rows: rows} }
}

// IdempotencyKey makes a command run once however often it is requested with the same key, so that the call survives a lost connection.
func IdempotencyKey(key string) RunOption { return func(c *command) { c.key = key } }

// BootID is the boot id (from Sandbox.Info) with which the key was first used, when another program may have used it.
func BootID(id string) RunOption { return func(c *command) { c.bootID = id } }
