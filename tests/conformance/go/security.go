package main

import (
	"crypto/tls"
	"crypto/x509"
	"os"

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
