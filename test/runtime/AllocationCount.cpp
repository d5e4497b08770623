//===- AllocationCount.cpp - Counts calls of malloc and friends -----------===//

#include "test/runtime/AllocationCount.h"
#include <atomic>
#include <cstddef>

static std::atomic<long> calls{0};

long allocationCount() { return calls; }

// glibc's own functions; defining malloc in the program replaces it everywhere.
extern "C" {
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

void *malloc(size_t size) {
  ++calls;
  return __libc_malloc(size);
}
void *calloc(size_t count, size_t size) {
  ++calls;
  return __libc_calloc(count, size);
}
void *realloc(void *old, size_t size) {
  ++calls;
  return __libc_realloc(old, size);
}
void *memalign(size_t alignment, size_t size) {
  ++calls;
  return __libc_memalign(alignment, size);
}
void *aligned_alloc(size_t alignment, size_t size) {
  ++calls;
  return __libc_memalign(alignment, size);
}
}
