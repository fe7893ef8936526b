package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"eventweir.dev/tests/clients/check"
)

// sendRaw posts as kopf does: without a kind, with a generated name, eventTime and the old timestamps, and never a
// PATCH.
func sendRaw(e check.Env, object string) error {
	for range 100 {
		now := time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")
		body, err := json.Marshal(map[string]any{
			"metadata":           map[string]any{"namespace": check.Namespace, "generateName": "kopf-event-"},
			"action":             "Action?",
			"type":               "Normal",
			"reason":             "Logging",
			"message":            "Handler 'create_fn' succeeded.",
			"reportingComponent": "kopf",
			"reportingInstance":  "dev",
			"source":             map[string]any{"component": "kopf"},
			"involvedObject": map[string]any{
				"apiVersion": "v1", "kind": "Pod", "name": object, "namespace": check.Namespace, "uid": "uid-" + object,
			},
			"firstTimestamp": now,
			"lastTimestamp":  now,
			"eventTime":      now,
		})
		if err != nil {
			return err
		}
		if err := post(e, body); err != nil {
			return err
		}
	}
	return nil
}

func post(e check.Env, body []byte) error {
	url := e.Server + "/api/v1/namespaces/" + check.Namespace + "/events"
	ctx, cancel := context.WithTimeout(context.Background(), e.Deadline)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusCreated {
		return fmt.Errorf("POST %s: %s: %s", url, response.Status, answer)
	}
	return nil
}
