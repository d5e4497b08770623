//===- ReaderStubs.cpp - What tests of readers do not link ----------------===//

#include "runtime/include/rt.h"
#include "runtime/src/local/Executor.h"
#include "test/runtime/AllocationCount.h"
#include <cstdlib>

/// Under sanitizers malloc is theirs.
long allocationCount() { return 0; }

/// The toy's kernels and the host's device name them; reading files runs no
/// kernel.
extern "C" void mgq_index_error(const char *, int64_t, int64_t) { abort(); }
void mgq::rt::checkIndexError(const char *) { abort(); }
