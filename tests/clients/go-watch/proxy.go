package main

import (
	"net"
	"sync"
)

// proxy forwards connections, as far as it is let.
type proxy struct {
	address string
	target  string

	mutex       sync.Mutex
	changed     *sync.Cond
	connections map[net.Conn]struct{}
	listener    net.Listener
	holding     bool
}

func listen(target string) (*proxy, error) {
	p := &proxy{address: "127.0.0.1:0", target: target, connections: map[net.Conn]struct{}{}}
	p.changed = sync.NewCond(&p.mutex)
	return p, p.comeBack()
}

// comeBack listens, again on the same port.
func (p *proxy) comeBack() error {
	listener, err := net.Listen("tcp", p.address)
	if err != nil {
		return err
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.address, p.listener = listener.Addr().String(), listener
	go p.accept(listener)
	return nil
}

// leave refuses connections and cuts those that are there.
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
	p.leave()
	p.release()
}
