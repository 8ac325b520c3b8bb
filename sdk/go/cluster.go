package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// cluster chooses a cluster: the configured one, else the Pod's own, KUBECONFIG, the engine on this machine if it runs or has run before,
// ~/.kube/config.
func cluster(ctx context.Context, o *options) (*rest.Config, string, error) {
	if o.rest != nil {
		return o.rest, "", nil
	}
	if o.kubeconfig != "" {
		return fromFile(o.kubeconfig, o.context)
	}
	if o.local {
		found, err := findOrStartEngine(ctx, o.dataDir)
		if err != nil {
			return nil, "", err
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
	// Also while it does not run: the same program must not change to another cluster when the engine has ended.
	if findEngine("") != nil || engineWasUsed("") {
		found, err := findOrStartEngine(ctx, "")
		if err != nil {
			return nil, "", err
		}
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
