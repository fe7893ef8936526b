package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// raw sends bytes over a connection of their own, and returns the codes of all answers until it is closed.
func (e env) raw(ctx context.Context, bytes string) ([]string, error) {
	settings, err := rest.TLSConfigFor(e.config)
	if err != nil {
		return nil, err
	}
	address, err := url.Parse(e.config.Host)
	if err != nil {
		return nil, err
	}
	dialer := tls.Dialer{Config: &tls.Config{RootCAs: settings.RootCAs, NextProtos: []string{"http/1.1"}}}
	connection, err := dialer.DialContext(ctx, "tcp", address.Host)
	if err != nil {
		return nil, err
	}
	defer func() { _ = connection.Close() }()
	if err := connection.SetDeadline(time.Now().Add(deadline)); err != nil {
		return nil, err
	}
	// The server may close before it has read everything.
	_, _ = io.WriteString(connection, bytes)
	var codes []string
	for reader := bufio.NewReader(connection); ; {
		answer, err := http.ReadResponse(reader, nil)
		if err != nil && len(codes) > 0 && !errors.Is(err, os.ErrDeadlineExceeded) {
			return codes, nil
		}
		if err == nil {
			_, err = io.Copy(io.Discard, answer.Body)
		}
		if err != nil {
			return codes, err
		}
		codes = append(codes, strconv.Itoa(answer.StatusCode))
	}
}

// smuggled: a request that another one hides never arrives at the apiserver, whichever way the end of the first can be
// read. What does arrive keeps its bytes.
func smuggled(ctx context.Context, e env) (string, error) {
	path := "/api/v1/namespaces/" + e.namespace
	host := "Host: " + strings.TrimPrefix(e.config.Host, "https://") + "\r\n"
	post := func(path, headers string) string {
		return "POST " + path + " HTTP/1.1\r\n" + host + "Authorization: Bearer " + e.config.BearerToken +
			"\r\nContent-Type: application/json\r\n" + headers + "\r\n"
	}
	length := func(n int) string { return "Content-Length: " + strconv.Itoa(n) + "\r\n" }
	create := func(name string) (string, error) {
		object := configMap(name)
		// Bytes that a reader of lines or of text would change.
		object.BinaryData = map[string][]byte{"b": every}
		object.Data["text"] = "a\r\n\r\nGET / HTTP/1.1\r\n\u0000\u2028\ufeff"
		body, err := json.Marshal(object)
		return string(body), err
	}
	const chunked = "Transfer-Encoding: chunked\r\n"
	attacks := []func(hidden string) string{
		// The length for one reader, and chunks for the other.
		func(hidden string) string { return length(len(hidden)+5) + chunked + "\r\n0\r\n\r\n" + hidden },
		func(hidden string) string {
			return length(4) + chunked + "\r\n" + strconv.FormatInt(int64(len(hidden)), 16) + "\r\n" + hidden + "\r\n0\r\n\r\n"
		},
		func(hidden string) string { return length(2) + length(len(hidden)+2) + "\r\n{}" + hidden },
		func(hidden string) string { return length(len(hidden)+2) + length(2) + "\r\n{}" + hidden },
		func(hidden string) string { return "Content-Length: +2\r\n\r\n{}" + hidden },
		func(hidden string) string {
			return "Transfer-Encoding : chunked\r\n" + length(len(hidden)+5) + "\r\n0\r\n\r\n" + hidden
		},
		func(hidden string) string { return "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + hidden },
		func(hidden string) string { return "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + hidden },
		func(hidden string) string { return "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" + hidden },
		func(hidden string) string { return "A: b\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden },
		func(hidden string) string { return "A: b\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden },
		func(hidden string) string { return chunked + "\r\n0x2\r\n{}\r\n0\r\n\r\n" + hidden },
		func(hidden string) string { return chunked + "\r\n2;a\nb\r\n{}\r\n0\r\n\r\n" + hidden },
		func(hidden string) string { return chunked + "\r\n2\r\n{}0\r\n\r\n" + hidden },
		func(hidden string) string { return chunked + "\r\n10000000000000002\r\n{}\r\n0\r\n\r\n" + hidden },
	}
	sent := 0
	for _, to := range []string{path + "/configmaps", path + "/events"} {
		for _, attack := range attacks {
			body, err := create(fmt.Sprintf("smuggled-%d", sent))
			if err != nil {
				return "", err
			}
			hidden := post(path+"/configmaps", length(len(body))+"Connection: close\r\n") + body
			codes, err := e.raw(ctx, strings.TrimSuffix(post(to, ""), "\r\n")+attack(hidden))
			if err != nil {
				return "", fmt.Errorf("%d: %w", sent, err)
			}
			if len(codes) != 1 || codes[0] < "400" {
				return "", fmt.Errorf("%d is answered %v, expected one refusal", sent, codes)
			}
			sent++
		}
	}
	// The same request behind one with a clear end, and in chunks of a byte.
	body, err := create("behind")
	if err != nil {
		return "", err
	}
	behind := post(path+"/configmaps", length(len(body))) + body
	if body, err = create("pieces"); err != nil {
		return "", err
	}
	pieces := post(path+"/configmaps", chunked+"Connection: close\r\n")
	for _, piece := range []byte(body) {
		pieces += "1;a=b\r\n" + string([]byte{piece}) + "\r\n"
	}
	codes, err := e.raw(ctx, post(path+"/events", length(2))+"{}"+behind+pieces+"0\r\n\r\n")
	if err != nil {
		return "", err
	}
	if !slices.Equal(codes[1:], []string{"201", "201"}) {
		return "", fmt.Errorf("requests with clear ends are answered %v", codes)
	}
	return fmt.Sprintf("%d requests arrived nowhere", sent), e.onlyClear(ctx, create)
}

// every is each byte once.
var every = func() []byte {
	bytes := make([]byte, 256)
	for i := range bytes {
		bytes[i] = byte(i)
	}
	return bytes
}()

// onlyClear checks that the apiserver has both objects with their bytes, and none that was smuggled.
func (e env) onlyClear(ctx context.Context, create func(string) (string, error)) error {
	list, err := e.admin.CoreV1().ConfigMaps(e.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	found := 0
	for _, have := range list.Items {
		if strings.HasPrefix(have.Name, "smuggled-") {
			return fmt.Errorf("%s has arrived", have.Name)
		}
		if have.Name != "behind" && have.Name != "pieces" {
			continue
		}
		found++
		body, err := create(have.Name)
		if err != nil {
			return err
		}
		var sent corev1.ConfigMap
		if err := json.Unmarshal([]byte(body), &sent); err != nil {
			return err
		}
		if sent.Data["text"] != have.Data["text"] || !slices.Equal(sent.BinaryData["b"], have.BinaryData["b"]) {
			return fmt.Errorf("%s arrived as %q and %s", have.Name, have.Data["text"], base64.StdEncoding.EncodeToString(have.BinaryData["b"]))
		}
	}
	if found != 2 {
		return fmt.Errorf("%d objects arrived, expected 2", found)
	}
	return nil
}
