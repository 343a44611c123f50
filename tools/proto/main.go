// Command proto makes the Go code of .proto files in a directory, with the protoc-gen-go that tools/go.mod pins and without
// protoc. With -check it only compares, and fails where the code is not that of the files.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	dir := flag.String("dir", "../messages", "where the .proto files are, and their code goes")
	check := flag.Bool("check", false, "write nothing; fail when the code is not up to date")
	flag.Parse()
	if err := run(context.Background(), *dir, *check); err != nil {
		fmt.Fprintln(os.Stderr, "proto:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir string, check bool) error {
	response, err := generate(ctx, dir)
	if err != nil {
		return err
	}
	for _, file := range response.File {
		name := filepath.Join(dir, file.GetName())
		if !check {
			if err := os.WriteFile(name, []byte(file.GetContent()), 0o644); err != nil {
				return err
			}
			continue
		}
		have, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if !bytes.Equal(have, []byte(file.GetContent())) {
			return fmt.Errorf("%s is not what its .proto file says; run 'make proto'", name)
		}
	}
	return nil
}

// generate compiles all .proto files of dir, each without imports from elsewhere, and asks the plugin for their code.
func generate(ctx context.Context, dir string) (*pluginpb.CodeGeneratorResponse, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.proto"))
	if err != nil || len(paths) == 0 {
		return nil, fmt.Errorf("no .proto files in %s: %w", dir, errors.Join(err, os.ErrNotExist))
	}
	request := &pluginpb.CodeGeneratorRequest{Parameter: proto.String("paths=source_relative")}
	for _, p := range paths {
		request.FileToGenerate = append(request.FileToGenerate, filepath.Base(p))
	}
	compiler := protocompile.Compiler{
		Resolver:       &protocompile.SourceResolver{ImportPaths: []string{dir}},
		SourceInfoMode: protocompile.SourceInfoStandard, // comments
	}
	files, err := compiler.Compile(ctx, request.FileToGenerate...)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		request.ProtoFile = append(request.ProtoFile, proto.Clone(protoutil.ProtoFromFileDescriptor(f)).(*descriptorpb.FileDescriptorProto))
	}
	return plugin(ctx, request)
}

// plugin runs protoc-gen-go.
func plugin(ctx context.Context, request *pluginpb.CodeGeneratorRequest) (*pluginpb.CodeGeneratorResponse, error) {
	in, err := proto.Marshal(request)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "go", "tool", "protoc-gen-go")
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("protoc-gen-go: %w", err)
	}
	response := new(pluginpb.CodeGeneratorResponse)
	if err := proto.Unmarshal(out, response); err != nil {
		return nil, err
	}
	if response.Error != nil {
		return nil, errors.New(response.GetError())
	}
	return response, nil
}
