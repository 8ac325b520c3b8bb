package sandbox

import (
	"context"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	extensionsv1beta1 "github.com/agent-sandbox/agent-sandbox-rs/sdk/go/api/extensions/v1beta1"
	"github.com/agent-sandbox/agent-sandbox-rs/sdk/go/api/v1beta1"
	"github.com/agent-sandbox/agent-sandbox-rs/sdk/go/clients/k8s/clientset/versioned/fake"
	"github.com/agent-sandbox/agent-sandbox-rs/sdk/go/clients/k8s/informers/externalversions"
)

// The generated clientset, informers and listers work together: what the clientset writes, the listers read.
func TestGeneratedClients(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	clients := fake.NewSimpleClientset()
	factory := externalversions.NewSharedInformerFactory(clients, 0)
	sandboxes, pools := factory.Agents().V1beta1().Sandboxes(), factory.Extensions().V1beta1().SandboxWarmPools()
	synced := []cache.InformerSynced{sandboxes.Informer().HasSynced, pools.Informer().HasSynced}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		t.Fatal("the informers do not sync")
	}
	box := &v1beta1.Sandbox{ObjectMeta: metav1.ObjectMeta{Name: "box", Namespace: "ns"}}
	box.Spec.OperatingMode = v1beta1.SandboxSpecOperatingModeSuspended
	if _, err := clients.AgentsV1beta1().Sandboxes("ns").Create(ctx, box, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pool := &extensionsv1beta1.SandboxWarmPool{ObjectMeta: metav1.ObjectMeta{Name: "pool", Namespace: "ns"}}
	if _, err := clients.ExtensionsV1beta1().SandboxWarmPools("ns").Create(ctx, pool, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for {
		found, err := sandboxes.Lister().Sandboxes("ns").Get("box")
		_, poolErr := pools.Lister().SandboxWarmPools("ns").Get("pool")
		if err == nil && poolErr == nil {
			if found.Spec.OperatingMode != v1beta1.SandboxSpecOperatingModeSuspended {
				t.Fatalf("the lister returned %q", found.Spec.OperatingMode)
			}
			break
		}
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		select {
		case <-ctx.Done():
			t.Fatal("the listers do not see what was created")
		case <-time.After(10 * time.Millisecond):
		}
	}
	if _, err := sandboxes.Lister().Sandboxes("other").Get("box"); !apierrors.IsNotFound(err) {
		t.Fatalf("another namespace: %v", err)
	}
}
