// Command apigen generates the typed API structs, with deep copies, from the rendered CRDs: go run ./internal/apigen ../../deploy/crds api
package main

import (
	"bytes"
	"fmt"
	"go/format"
	"log"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"sigs.k8s.io/yaml"
)

type schema struct {
	Type                 string             `json:"type"`
	Format               string             `json:"format"`
	Description          string             `json:"description"`
	Properties           map[string]*schema `json:"properties"`
	Items                *schema            `json:"items"`
	AdditionalProperties *schema            `json:"additionalProperties"`
	Required             []string           `json:"required"`
	Enum                 []string           `json:"enum"`
	IntOrString          bool               `json:"x-kubernetes-int-or-string"`
}

type definition struct {
	Spec struct {
		Group    string `json:"group"`
		Names    struct{ Kind, Plural string }
		Versions []struct {
			Name   string
			Schema struct{ OpenAPIV3Schema *schema }
		}
	}
}

// known maps a property, by the end of its path, to the standard Kubernetes type for it.
var known = []struct{ suffix, goType string }{
	{"podTemplate.spec", "corev1.PodSpec"},
	{"volumeClaimTemplates.[].spec", "corev1.PersistentVolumeClaimSpec"},
	{"conditions.[]", "metav1.Condition"},
	{"ingress.[]", "networkingv1.NetworkPolicyIngressRule"},
	{"egress.[]", "networkingv1.NetworkPolicyEgressRule"},
}

// generator collects the types of one package.
type generator struct {
	structs map[string]string
	copies  map[string]string
	order   []string
}

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: apigen CRD-FOLDER OUTPUT-FOLDER")
	}
	files, err := filepath.Glob(filepath.Join(os.Args[1], "*.yaml"))
	if err != nil || len(files) == 0 {
		log.Fatalf("no CRDs in %s: %v", os.Args[1], err)
	}
	packages := map[string][]kind{}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			log.Fatal(err)
		}
		var found definition
		if err := yaml.Unmarshal(content, &found); err != nil {
			log.Fatalf("%s: %v", file, err)
		}
		for _, version := range found.Spec.Versions {
			folder := version.Name
			if strings.HasPrefix(found.Spec.Group, "extensions.") {
				folder = filepath.Join("extensions", version.Name)
			}
			packages[folder] = append(packages[folder], kind{
				found.Spec.Names.Kind, found.Spec.Names.Plural, found.Spec.Group, version.Schema.OpenAPIV3Schema,
			})
		}
	}
	for folder, kinds := range packages {
		if err := write(filepath.Join(os.Args[2], folder), filepath.Base(folder), kinds); err != nil {
			log.Fatal(err)
		}
	}
}

type kind struct {
	name, plural, group string
	schema              *schema
}

func write(folder, version string, kinds []kind) error {
	g := &generator{structs: map[string]string{}, copies: map[string]string{}}
	var registered []string
	for _, k := range kinds {
		g.kind(k)
		registered = append(registered, fmt.Sprintf("&%s{}, &%sList{},", k.name, k.name))
	}
	var out bytes.Buffer
	// The generators of clients/k8s read markers in doc.go only.
	goName := "Agents"
	if strings.HasPrefix(kinds[0].group, "extensions.") {
		goName = "Extensions"
	}
	doc := fmt.Sprintf("// Package %s holds the types of %s/%s. Generated from the CRDs by internal/apigen; do not edit.\n//\n// +groupName=%s\n// +groupGoName=%s\npackage %s\n", version, kinds[0].group, version, kinds[0].group, goName, version)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, "doc.go"), []byte(doc), 0o644); err != nil {
		return err
	}
	fmt.Fprintf(&out, "// Generated from the CRDs by internal/apigen; do not edit.\n\npackage %s\n\nimport (\n", version)
	body := strings.Join(g.all(), "\n")
	for _, use := range []struct{ name, path string }{
		{"corev1.", `corev1 "k8s.io/api/core/v1"`},
		{"networkingv1.", `networkingv1 "k8s.io/api/networking/v1"`},
		{"intstr.", `"k8s.io/apimachinery/pkg/util/intstr"`},
	} {
		if strings.Contains(body, use.name) {
			fmt.Fprintln(&out, use.path)
		}
	}
	fmt.Fprint(&out, `metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
"k8s.io/apimachinery/pkg/runtime"
"k8s.io/apimachinery/pkg/runtime/schema"
)

`)
	fmt.Fprintf(&out, "// GroupVersion of these types.\nvar GroupVersion = schema.GroupVersion{Group: %q, Version: %q}\n\n", kinds[0].group, version)
	fmt.Fprint(&out, "// SchemeGroupVersion is GroupVersion under the name that generated clients use.\nvar SchemeGroupVersion = GroupVersion\n\n")
	fmt.Fprint(&out, "// Resource is a resource of this group, for errors of generated listers.\nfunc Resource(resource string) schema.GroupResource {\nreturn GroupVersion.WithResource(resource).GroupResource()\n}\n\n")
	fmt.Fprintf(&out, "// AddToScheme registers these types.\nfunc AddToScheme(scheme *runtime.Scheme) error {\nscheme.AddKnownTypes(GroupVersion,\n%s\n)\nmetav1.AddToGroupVersion(scheme, GroupVersion)\nreturn nil\n}\n\n", strings.Join(registered, "\n"))
	out.WriteString(body)
	formatted, err := format.Source(out.Bytes())
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", folder, err, out.String())
	}
	return os.WriteFile(filepath.Join(folder, "zz_generated.types.go"), formatted, 0o644)
}

func (g *generator) all() []string {
	var all []string
	for _, name := range g.order {
		all = append(all, g.structs[name], g.copies[name])
	}
	return all
}

// kind adds the object, its list and everything below it.
func (g *generator) kind(k kind) {
	var fields, copies strings.Builder
	fields.WriteString("metav1.TypeMeta `json:\",inline\"`\nmetav1.ObjectMeta `json:\"metadata,omitempty\"`\n")
	copies.WriteString("out.TypeMeta = in.TypeMeta\nin.ObjectMeta.DeepCopyInto(&out.ObjectMeta)\n")
	for _, part := range []string{"spec", "status"} {
		if below := k.schema.Properties[part]; below != nil {
			name := k.name + title(part)
			g.object(name, part, below)
			fmt.Fprintf(&fields, "%s %s `json:\"%s,omitempty\"`\n", title(part), name, part)
			fmt.Fprintf(&copies, "in.%s.DeepCopyInto(&out.%s)\n", title(part), title(part))
		}
	}
	g.add(k.name, "// +genclient\n\n"+doc(k.name, k.schema.Description)+fmt.Sprintf("type %s struct {\n%s}\n", k.name, fields.String()),
		copyInto(k.name, copies.String())+runtimeObject(k.name))
	list := k.name + "List"
	g.add(list, fmt.Sprintf("// %s is a list of them.\ntype %s struct {\nmetav1.TypeMeta `json:\",inline\"`\nmetav1.ListMeta `json:\"metadata,omitempty\"`\nItems []%s `json:\"items\"`\n}\n", list, list, k.name),
		copyInto(list, fmt.Sprintf("out.TypeMeta = in.TypeMeta\nin.ListMeta.DeepCopyInto(&out.ListMeta)\nif in.Items != nil {\nout.Items = make([]%s, len(in.Items))\nfor i := range in.Items {\nin.Items[i].DeepCopyInto(&out.Items[i])\n}\n}\n", k.name))+runtimeObject(list))
}

func (g *generator) add(name, definition, copies string) {
	if _, there := g.structs[name]; there {
		return
	}
	g.order = append(g.order, name)
	g.structs[name], g.copies[name] = definition, copies
}

// object adds a struct for an object with properties.
func (g *generator) object(name, path string, s *schema) {
	required := map[string]bool{}
	for _, field := range s.Required {
		required[field] = true
	}
	var members []string
	for field := range s.Properties {
		members = append(members, field)
	}
	sort.Strings(members)
	var fields, copies strings.Builder
	for _, field := range members {
		below := s.Properties[field]
		goType, base := g.goType(name+title(field), path+"."+field, below)
		optional := ",omitempty"
		if required[field] {
			optional = ""
		} else if !strings.HasPrefix(goType, "[]") && !strings.HasPrefix(goType, "map") && goType != "string" && !isEnum(below) {
			goType = "*" + goType
		}
		if below.Description != "" {
			fmt.Fprintf(&fields, "// %s\n", strings.ReplaceAll(below.Description, "\n", "\n// "))
		}
		fmt.Fprintf(&fields, "%s %s `json:\"%s%s\"`\n", title(field), goType, field, optional)
		copies.WriteString(copyField(title(field), goType, base))
	}
	g.add(name, doc(name, s.Description)+fmt.Sprintf("type %s struct {\n%s}\n", name, fields.String()), copyInto(name, copies.String()))
}

func isEnum(s *schema) bool { return s.Type == "string" && len(s.Enum) > 0 }

// goType returns the Go type of a property, and the type of its elements.
func (g *generator) goType(name, path string, s *schema) (string, string) {
	for _, k := range known {
		if strings.HasSuffix(path, k.suffix) {
			return k.goType, k.goType
		}
	}
	switch {
	case s.IntOrString:
		return "intstr.IntOrString", "intstr.IntOrString"
	case isEnum(s):
		g.enum(name, s)
		return name, name
	case s.Type == "string" && s.Format == "date-time":
		return "metav1.Time", "metav1.Time"
	case s.Type == "string":
		return "string", "string"
	case s.Type == "integer" && s.Format == "int64":
		return "int64", "int64"
	case s.Type == "integer":
		return "int32", "int32"
	case s.Type == "boolean":
		return "bool", "bool"
	case s.Type == "array":
		element, base := g.goType(strings.TrimSuffix(name, "s"), path+".[]", s.Items)
		return "[]" + element, base
	case s.AdditionalProperties != nil:
		element, base := g.goType(name, path+".{}", s.AdditionalProperties)
		return "map[string]" + element, base
	case len(s.Properties) > 0:
		g.object(name, path, s)
		return name, name
	default:
		return "runtime.RawExtension", "runtime.RawExtension"
	}
}

func (g *generator) enum(name string, s *schema) {
	enumTypes[name] = true
	var text strings.Builder
	fmt.Fprintf(&text, "%stype %s string\n\nconst (\n", doc(name, s.Description), name)
	for _, value := range s.Enum {
		fmt.Fprintf(&text, "%s%s %s = %q\n", name, title(value), name, value)
	}
	text.WriteString(")\n")
	g.add(name, text.String(), "")
}

func copyField(field, goType, base string) string {
	plain := map[string]bool{"string": true, "bool": true, "int32": true, "int64": true}
	deep := !plain[base] && !enumTypes[base]
	switch {
	case strings.HasPrefix(goType, "[]") || strings.HasPrefix(goType, "map"):
		element := "out.%[1]s[key] = value"
		if deep {
			element = "out.%[1]s[key] = *value.DeepCopy()"
		}
		return fmt.Sprintf("if in.%[1]s != nil {\nout.%[1]s = make(%[2]s, len(in.%[1]s))\nfor key, value := range in.%[1]s {\n"+element+"\n}\n}\n", field, goType)
	case strings.HasPrefix(goType, "*") && deep:
		return fmt.Sprintf("out.%[1]s = in.%[1]s.DeepCopy()\n", field)
	case strings.HasPrefix(goType, "*"):
		return fmt.Sprintf("if in.%[1]s != nil {\nvalue := *in.%[1]s\nout.%[1]s = &value\n}\n", field)
	case deep:
		return fmt.Sprintf("in.%[1]s.DeepCopyInto(&out.%[1]s)\n", field)
	default:
		return ""
	}
}

// enumTypes are plain strings, which the assignment of the whole struct copies.
var enumTypes = map[string]bool{}

func copyInto(name, copies string) string {
	return fmt.Sprintf("// DeepCopyInto copies everything into out.\nfunc (in *%[1]s) DeepCopyInto(out *%[1]s) {\n*out = *in\n%[2]s}\n\n// DeepCopy is a copy that shares nothing.\nfunc (in *%[1]s) DeepCopy() *%[1]s {\nif in == nil {\nreturn nil\n}\nout := new(%[1]s)\nin.DeepCopyInto(out)\nreturn out\n}\n", name, copies)
}

func runtimeObject(name string) string {
	return fmt.Sprintf("\n// DeepCopyObject makes it a runtime.Object.\nfunc (in *%[1]s) DeepCopyObject() runtime.Object {\nreturn in.DeepCopy()\n}\n", name)
}

func doc(name, description string) string {
	if description == "" {
		return fmt.Sprintf("// %s of the API.\n", name)
	}
	return fmt.Sprintf("// %s: %s\n", name, strings.ReplaceAll(description, "\n", "\n// "))
}

func title(word string) string {
	if word == "podIPs" {
		return "PodIPs"
	}
	return strings.ToUpper(word[:1]) + word[1:]
}
