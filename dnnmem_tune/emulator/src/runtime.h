// Shared by the sources of the stub of libcudart.
#pragma once

int fail(int error);       // remembers the error for cudaGetLastError and returns it
void *new_handle(void);    // a fresh opaque handle
