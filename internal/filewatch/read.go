package filewatch

import (
	"fmt"
	"io"
	"os"
	"syscall"
)

// ReadFile returns the contents of a regular file, and what the file was when it was
// read. Files larger than limit bytes are refused after so much has been read, and so
// is all that is not a file: opening a named pipe does not wait for a writer.
func ReadFile(path string, limit int64) ([]byte, os.FileInfo, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%s is not a regular file", path)
	}
	data, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err != nil {
		return nil, nil, err
	}
	if int64(len(data)) > limit {
		return nil, nil, fmt.Errorf("%s is too large: at most %d bytes are allowed", path, limit)
	}
	return data, info, nil
}
