// Package sandbox creates and uses sandboxes for AI agents: isolated, stateful computers on Kubernetes or on this machine.
//
//	client, err := sandbox.NewClient(ctx)
//	box, err := client.Claim(ctx, "python-sandbox-template")
//	defer box.Delete(ctx)
//	result, err := box.Run(ctx, "echo hello")
//
// Access to the Kubernetes API uses client-go. Options choose the connection for commands and files: by default a tunnel through the API's
// port-forward, which needs only a kubeconfig. Every call takes a context; its deadline and cancellation end the call, and a command that
// the call started.
package sandbox
