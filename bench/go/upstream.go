package main

import (
	"context"
	"flag"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// stored is the records of an apiserver, and the sum of their counts.
type stored struct {
	Records     int `json:"records"`
	Occurrences int `json:"occurrences"`
}

// show counts the events of an apiserver and their occurrences, and deletes them with --clear.
func show(arguments []string) error {
	var kubeconfig string
	var clear bool
	err := parse(arguments, func(f *flag.FlagSet) {
		f.StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig of the apiserver")
		f.BoolVar(&clear, "clear", false, "delete the events")
	})
	if err != nil {
		return err
	}
	config, err := config(kubeconfig)
	if err != nil {
		return err
	}
	client, err := typedcorev1.NewForConfig(config)
	if err != nil {
		return err
	}
	list, err := client.Events("").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	var sum stored
	for _, e := range list.Items {
		if e.Namespace != "shop" {
			continue
		}
		sum.Records++
		sum.Occurrences += max(int(e.Count), 1)
	}
	if clear {
		err := client.Events("shop").DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{})
		if err != nil {
			return err
		}
	}
	return report(sum)
}
