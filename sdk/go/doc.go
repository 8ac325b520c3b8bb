// Package sandbox creates and uses sandboxes for AI agents: isolated, stateful computers on Kubernetes or on this machine.
//
//	client, err := sandbox.NewClient(ctx)
//	box, err := client.Claim(ctx, "python-sandbox-template")
//	defer box.Delete(ctx)
//	result, err := box.Run(ctx, "echo hello")
//
// The Kubernetes side is client-go; how commands and files travel is a Connection: by default a tunnel through the API's port-forward, for
// which nothing but a kubeconfig is needed. Every call takes a context; its deadline and cancellation end the call, and a command that was
// started with it.
package sandbox
