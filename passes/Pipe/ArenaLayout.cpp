//===- ArenaLayout.cpp - Offsets for values by lifetime -------------------===//

#include "passes/Pipe/ArenaLayout.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"

using namespace mgq::pipe;

int64_t mgq::pipe::layOut(llvm::MutableArrayRef<Lifetime> buffers) {
  llvm::SmallVector<Lifetime *> order;
  for (Lifetime &buffer : buffers)
    order.push_back(&buffer);
  llvm::sort(order, [](Lifetime *a, Lifetime *b) {
    return a->bytes != b->bytes ? a->bytes > b->bytes : a < b;
  });

  // Placed buffers in order of offset.
  llvm::SmallVector<Lifetime *> placed;
  int64_t total = 0;
  for (Lifetime *buffer : order) {
    int64_t bytes = alignBytes(buffer->bytes), offset = 0;
    for (Lifetime *other : placed) {
      if (other->end < buffer->begin || buffer->end < other->begin)
        continue;
      if (offset + bytes <= other->offset)
        break;
      offset = std::max(offset, other->offset + alignBytes(other->bytes));
    }
    buffer->offset = offset;
    total = std::max(total, offset + bytes);
    placed.insert(llvm::upper_bound(placed, buffer,
                                    [](Lifetime *a, Lifetime *b) {
                                      return a->offset < b->offset;
                                    }),
                  buffer);
  }
  return total;
}
