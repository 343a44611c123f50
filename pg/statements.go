package pg

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/jackc/pgx/v5"
)

//go:embed sql/*.sql
var statementFiles embed.FS

// loadStatements reads every statement file and makes its text ready for the schema.
func loadStatements(schema string) map[string]string {
	files, err := fs.Glob(statementFiles, "sql/*.sql")
	if err != nil {
		panic("pg: list the statement files: " + err.Error())
	}
	texts := make(map[string]string, len(files))
	for _, file := range files {
		raw, err := statementFiles.ReadFile(file)
		if err != nil {
			panic("pg: read " + file + ": " + err.Error())
		}
		name := strings.TrimSuffix(strings.TrimPrefix(file, "sql/"), ".sql")
		texts[name] = "/* gendurable:" + name + " */ " + inSchema(stripComments(string(raw)), schema)
	}
	return texts
}

// stripComments drops "--" comments outside of string literals and quoted names, and empty lines.
func stripComments(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		var quote byte
		for i := 0; i < len(line); i++ {
			switch c := line[i]; {
			case quote != 0:
				if c == quote {
					quote = 0
				}
			case c == '\'' || c == '"':
				quote = c
			case c == '-' && strings.HasPrefix(line[i:], "--"):
				line = line[:i]
			}
		}
		if line = strings.TrimRight(line, " \t\n"); line != "" {
			out.WriteString(line)
			out.WriteByte('\n')
		}
	}
	return strings.TrimSuffix(strings.TrimSuffix(out.String(), "\n"), ";")
}

// inSchema puts the quoted schema where the text says public: as a qualifier, and as the literal 'public' that
// catalogue look-ups compare with.
func inSchema(text, schema string) string {
	return strings.NewReplacer(
		"public.", pgx.Identifier{schema}.Sanitize()+".",
		"'public'", "'"+strings.ReplaceAll(schema, "'", "''")+"'",
	).Replace(text)
}

// checkSchema refuses what cannot be a schema's name, or would break out of the texts it is written into.
func checkSchema(schema string) error {
	switch {
	case schema == "":
		return errors.New("pg: the schema name is empty")
	case len(schema) > 63:
		return fmt.Errorf("pg: the schema name %q is longer than 63 bytes", schema)
	case strings.HasPrefix(schema, "pg_"):
		return fmt.Errorf("pg: the schema name %q is reserved by Postgres", schema)
	case strings.ContainsFunc(schema, func(r rune) bool { return r < ' ' }), strings.Contains(schema, "$gen_durable$"):
		return fmt.Errorf("pg: the schema name %q contains a character that is not allowed", schema)
	}
	return nil
}
