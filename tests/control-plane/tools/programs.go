//go:build programs

// Package programs names what is built from here, so that `go mod tidy` keeps it.
package programs

import (
	_ "go.etcd.io/etcd/server/v3"
	_ "helm.sh/helm/v4/cmd/helm"
	_ "sigs.k8s.io/kwok/cmd/kwok"
)
