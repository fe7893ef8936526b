package main

import (
	"net"
	"sync"
)

// proxy forwards connections, as far as it is let.
type proxy struct {
	listener net.Listener
	target   string

	mutex       sync.Mutex
	changed     *sync.Cond
	connections map[net.Conn]struct{}
	refusing    bool
	holding     bool
}

func listen(target string) (*proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{listener: listener, target: target, connections: map[net.Conn]struct{}{}}
	p.changed = sync.NewCond(&p.mutex)
	go p.accept()
	return p, nil
}

func (p *proxy) address() string { return p.listener.Addr().String() }

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			client.Close()
			continue
		}
		if !p.add(client, server) {
			continue
		}
		go p.forward(server, client)
		go p.forward(client, server)
	}
}

func (p *proxy) add(both ...net.Conn) bool {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for _, c := range both {
		if p.refusing {
			c.Close()
			continue
		}
		p.connections[c] = struct{}{}
	}
	return !p.refusing
}

// forward copies until one side ends, then ends both.
func (p *proxy) forward(from, to net.Conn) {
	buffer := make([]byte, 4096)
	for {
		p.mutex.Lock()
		for p.holding {
			p.changed.Wait()
		}
		p.mutex.Unlock()
		n, err := from.Read(buffer)
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				break
			}
		}
		if err != nil {
			break
		}
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for _, c := range []net.Conn{from, to} {
		c.Close()
		delete(p.connections, c)
	}
}

// cut closes every connection.
func (p *proxy) cut() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for c := range p.connections {
		c.Close()
	}
}

// refuse closes new connections as soon as they are accepted.
func (p *proxy) refuse(on bool) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.refusing = on
}

// hold stops forwarding, and keeps the connections.
func (p *proxy) hold() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.holding = true
}

func (p *proxy) release() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.holding = false
	p.changed.Broadcast()
}

func (p *proxy) close() {
	p.listener.Close()
	p.release()
	p.cut()
}
