// Package instance is how callers speak of instances: addresses, results and refusals. They are the same whether an engine
// is in the same process (package gendurable) or behind a gateway (package cluster). Package gendurable has all of them
// under the same names; programs need not import this one.
package instance
