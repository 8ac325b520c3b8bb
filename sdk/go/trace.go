package sandbox

import (
	"context"
	"regexp"
)

type traceKey struct{}

var w3c = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

// WithTraceparent adds the calls made with the context to a trace, by its W3C `traceparent`. An invalid value is ignored.
func WithTraceparent(ctx context.Context, parent string) context.Context {
	if !w3c.MatchString(parent) {
		return ctx
	}
	return context.WithValue(ctx, traceKey{}, parent)
}

func traceparent(ctx context.Context) string {
	parent, _ := ctx.Value(traceKey{}).(string)
	return parent
}
