// Command manifests decodes Kubernetes manifests into the API's own Go types. It refuses unknown fields, duplicate
// fields, values of a wrong type, and a second object of one name in a file. Kinds outside Kubernetes (such as
// ServiceMonitor) are listed and not checked. It checks neither required fields nor the apiserver's validation beyond
// types.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

func main() {
	decoder := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme,
		json.SerializerOptions{Yaml: true, Strict: true})
	good, unknown, bad := 0, 0, 0
	for _, file := range os.Args[1:] {
		seen := map[string]bool{}
		err := each(file, func(n int, document []byte) {
			object, kind, err := decoder.Decode(document, nil, nil)
			if named, ok := object.(metav1.Object); ok && err == nil {
				name := fmt.Sprint(kind, " ", named.GetNamespace(), "/", named.GetName())
				if seen[name] {
					err = fmt.Errorf("%s is there twice", name)
				}
				seen[name] = true
			}
			switch {
			case err == nil:
				good++
			case runtime.IsNotRegisteredError(err) && kind != nil:
				unknown++
				fmt.Printf("%s: document %d: %s is not a Kubernetes kind, not checked\n", file, n, kind)
			default:
				bad++
				fmt.Printf("%s: document %d: %v\n", file, n, err)
			}
		})
		if err != nil {
			bad++
			fmt.Printf("%s: %v\n", file, err)
		}
	}
	fmt.Printf("%d good, %d of unknown kinds, %d bad\n", good, unknown, bad)
	if bad > 0 || good == 0 {
		os.Exit(1)
	}
}

func each(path string, check func(int, []byte)) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	documents := yaml.NewYAMLReader(bufio.NewReader(file))
	for n := 1; ; n++ {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		check(n, document)
	}
}
