//go:build !linux

package gendurable_test

import "syscall"

func bouncerAttributes() *syscall.SysProcAttr { return nil }
