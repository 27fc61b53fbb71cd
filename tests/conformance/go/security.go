package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// security returns how a client connects, from the environment: CLIENT_CA, whose certificates it trusts;
// CLIENT_CERTIFICATE, its own with its key; CLIENT_MECHANISM, CLIENT_USER and CLIENT_PASSWORD, its login.
// Without these it connects in plain text.
func security() []kgo.Opt {
	opts := []kgo.Opt{}
	if path := os.Getenv("CLIENT_CA"); path != "" {
		trusted, err := os.ReadFile(path)
		must(err)
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(trusted)
		config := &tls.Config{RootCAs: pool}
		if own := os.Getenv("CLIENT_CERTIFICATE"); own != "" {
			pair, err := tls.LoadX509KeyPair(own, own)
			must(err)
			config.Certificates = []tls.Certificate{pair}
		}
		opts = append(opts, kgo.DialTLSConfig(config))
	}
	user, password := os.Getenv("CLIENT_USER"), os.Getenv("CLIENT_PASSWORD")
	switch mechanism := os.Getenv("CLIENT_MECHANISM"); mechanism {
	case "":
	case "PLAIN":
		opts = append(opts, kgo.SASL(plain.Auth{User: user, Pass: password}.AsMechanism()))
	case "SCRAM-SHA-256":
		opts = append(opts, kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha256Mechanism()))
	case "SCRAM-SHA-512":
		opts = append(opts, kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha512Mechanism()))
	default:
		fail("CLIENT_MECHANISM=%s is not known", mechanism)
	}
	return opts
}

// refusedLogin is refused with the error of a wrong password.
func refusedLogin(c *cluster) {
	if err := c.refusal(); !errors.Is(err, kerr.SaslAuthenticationFailed) {
		fail("expected SASL_AUTHENTICATION_FAILED, found %v", err)
	}
}

// refusedCertificate is refused while it encrypts, or by the end of the connection.
func refusedCertificate(c *cluster) {
	err := c.refusal()
	for _, words := range []string{"tls:", "EOF", "reset", "closed the connection"} {
		if err != nil && strings.Contains(err.Error(), words) {
			return
		}
	}
	fail("expected the end of the connection, found %v", err)
}

// refusal returns the error of a client that asks for the first time.
func (c *cluster) refusal() error {
	ctx, cancel := context.WithTimeout(c.ctx, 30*time.Second)
	defer cancel()
	cl := c.client(kgo.RequestRetries(0))
	defer cl.Close()
	return cl.Ping(ctx)
}
