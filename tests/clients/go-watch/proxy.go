package main

import (
	"io"
	"net"
	"sync"
)

// proxy forwards connections to target while it listens.
type proxy struct {
	address string
	target  string

	mutex       sync.Mutex
	connections map[net.Conn]struct{}
	listener    net.Listener
}

func listen(target string) (*proxy, error) {
	p := &proxy{address: "127.0.0.1:0", target: target, connections: map[net.Conn]struct{}{}}
	return p, p.comeBack()
}

// comeBack listens again on the same port.
func (p *proxy) comeBack() error {
	listener, err := net.Listen("tcp", p.address)
	if err != nil {
		return err
	}
	p.address, p.listener = listener.Addr().String(), listener
	go p.accept(listener)
	return nil
}

// leave refuses new connections and cuts the open ones.
func (p *proxy) leave() {
	p.listener.Close()
	p.cut()
}

func (p *proxy) accept(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			client.Close()
			continue
		}
		p.mutex.Lock()
		p.connections[client], p.connections[server] = struct{}{}, struct{}{}
		p.mutex.Unlock()
		go p.forward(server, client)
		go p.forward(client, server)
	}
}

// forward copies until one side closes, then closes both.
func (p *proxy) forward(from, to net.Conn) {
	_, _ = io.Copy(to, from)
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for _, c := range []net.Conn{from, to} {
		c.Close()
		delete(p.connections, c)
	}
}

// cut closes all connections.
func (p *proxy) cut() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for c := range p.connections {
		c.Close()
	}
}
