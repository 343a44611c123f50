package lab

import (
	"context"
	"os"
	"runtime"
	"strings"
	"time"
)

// Environment is where and when figures were measured.
type Environment struct {
	Date     time.Time         `json:"date"`
	CPU      string            `json:"cpu"`
	Cores    int               `json:"cores"`
	MemoryGB float64           `json:"memory_gb"`
	OS       string            `json:"os"`
	Go       string            `json:"go"`
	Postgres string            `json:"postgres"`
	Settings map[string]string `json:"settings"`
	// Load is the load average when the run began: on a machine that others use, only ratios mean something.
	Load string `json:"load_average"`
}

// Environment describes the machine and the server.
func (s *Server) Environment(ctx context.Context) (e Environment, err error) {
	e = Environment{
		Date: time.Now().UTC().Truncate(time.Second), Cores: runtime.NumCPU(), Go: runtime.Version(),
		OS: runtime.GOOS + "/" + runtime.GOARCH, Settings: settings,
		CPU:  field("/proc/cpuinfo", "model name"),
		Load: strings.Join(firstFields("/proc/loadavg", 3), " "),
	}
	if kb := strings.Fields(field("/proc/meminfo", "MemTotal")); len(kb) > 0 {
		var n float64
		for _, c := range kb[0] {
			n = n*10 + float64(c-'0')
		}
		e.MemoryGB = float64(int(n/1024/1024*10)) / 10
	}
	err = s.admin.QueryRow(ctx, "SHOW server_version").Scan(&e.Postgres)
	return e, err
}

// field returns the value of the first line "name : value" of a file of /proc, or "".
func field(path, name string) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(raw)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func firstFields(path string, n int) []string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	f := strings.Fields(string(raw))
	return f[:min(n, len(f))]
}
