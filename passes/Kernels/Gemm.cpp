//===- Gemm.cpp - Matrix products of any shape as functions of the module -===//
//
// Inside a chunk (rows x columns of C):
//
//   for columns in blocks that fit the buffer
//     for k in blocks of `depth`          sums continue through C
//       pack B's block into panels        or use it where it is
//       for rows in balanced blocks
//         transpose A's block             if A is transposed
//         for panels: for tiles: micro-kernel
//
// k is never split between chunks, so an element is one chain of FMAs.
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Gemm.h"

#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace mgq::kernels;

using Vals = KernelBuilder::Vals;

/// Below this many rows B is read about as often as packing would read it.
static constexpr int64_t kTilesWithoutPacking = 2;

/// Columns of B that are packed at a time. A transposed A is packed once per
/// such block, so it gets wider ones and lower row blocks.
static int64_t columnBlock(const CpuFamily &family, bool transposedA) {
  return transposedA ? 192 : family.lanes == 8 ? 96 : 128;
}
static int64_t rowBlock(const CpuFamily &family, bool transposedA) {
  return transposedA ? 120 : family.rowBlock;
}

void GemmShape::chooseChunks(const CpuFamily &family, bool transposedA,
                             BLayout layoutB) {
  // About 10 us: less is not worth waking a thread for.
  constexpr double kSmall = 1e6;
  chunkM = std::max<int64_t>(m, 1);
  chunkN = std::max<int64_t>(n, 1);
  double flops = 2.0 * m * n * std::max<int64_t>(k, 1);
  if (flops <= kSmall)
    return;
  // Columns in chunks (balanced, whole panels), more where that is small.
  const int64_t columns = transposedA ? 192 : 96;
  int64_t panel = family.panel();
  auto balance = [](int64_t size, int64_t parts, int64_t unit) {
    return llvm::alignTo(llvm::divideCeil(size, std::max<int64_t>(parts, 1)),
                         unit);
  };
  int64_t parts = std::min<int64_t>(llvm::divideCeil(n, columns),
                                    std::max<int64_t>(1, flops / kSmall));
  chunkN = balance(n, parts, panel);
  // Rows are cut too where columns give few chunks; each pack B again, so they
  // are high unless there is nothing to pack.
  constexpr int64_t kChunks = 32;
  int64_t chunks = batch * llvm::divideCeil(n, chunkN);
  int64_t lowest = layoutB == BLayout::packed ? 64 : 128;
  if (chunks < kChunks && m >= 2 * lowest) {
    double chunkFlops = flops / llvm::divideCeil(n, chunkN);
    int64_t most = std::min<int64_t>(
        {static_cast<int64_t>(llvm::divideCeil(kChunks, chunks)), m / lowest,
         static_cast<int64_t>(chunkFlops / kSmall)});
    chunkM = balance(m, most, family.rows);
  }
}

/// Index of a field in GemmShape's table.
enum Field { M, N, K, LDA, LDB, LDC, BATCH, SA, SB, SC, CHUNK_M, CHUNK_N };

static std::string suffix(bool transposedA, BLayout layoutB, Stored storedA,
                          Stored storedB) {
  static constexpr char kLayouts[] = {'n', 't', 'p'};
  return std::string(transposedA ? "t" : "n") + kLayouts[int(layoutB)] +
         suffixOf(storedA, "_a_") + suffixOf(storedB, "_b_");
}

static Read readOf(Stored stored) {
  return stored == Stored::f32   ? Read::f32
         : stored == Stored::f16 ? Read::f16
                                 : Read::bf16;
}

/// chunk(context, index), with context = {A, B, C, shape}.
LLVM::LLVMFuncOp GemmBuilder::getGemmChunk(bool transposedA, BLayout layoutB,
                                           Stored storedA, Stored storedB) {
  KernelBuilder &kb = getBuilder();
  const CpuFamily &family = getFamily();
  Type ptr = kb.ptr(), i64 = kb.i64();
  Type elementA = elementType(kb, storedA), elementB = elementType(kb, storedB);
  // Both operands as the CPU's bf16 units take them.
  const bool byUnits = hasPairs(storedA) && hasPairs(storedB);
  // A is read where it is unless that takes a copy.
  const bool copiesA = transposedA || (storedA != Stored::f32 && !byUnits);
  std::string name =
      "mgq_gemm_chunk_" + suffix(transposedA, layoutB, storedA, storedB);
  return kb.function(name, {ptr, i64}, [&](Vals args) {
    Val context = args[0], index = args[1];
    auto pointer = [&](int64_t i) {
      return kb.load(ptr, kb.at(context, i, ptr));
    };
    Val shape = pointer(3);
    auto field = [&](Field f) { return kb.load(i64, kb.at(shape, f, i64)); };
    Val m = field(M), n = field(N), k = field(K);
    Val lda = field(LDA), ldb = field(LDB), ldc = field(LDC);
    Val chunkM = field(CHUNK_M), chunkN = field(CHUNK_N);

    // Of half as wide elements, twice as many fit the caches.
    const int64_t panel = family.panel(),
                  depth = byUnits ? 2 * family.depth : family.depth;
    const int64_t columnsAtOnce = columnBlock(family, copiesA);
    const int64_t rowsAtOnce = rowBlock(family, copiesA);
    // Not a power of two: rows of A's block must not fall on one cache set.
    const int64_t ldCopy =
        byUnits ? rowsAtOnce + family.lanes : depth + family.lanes;
    const int64_t stepsOfDepth = byUnits ? depth / 2 : depth;
    Val copyOfA, panels;
    if (copiesA)
      copyOfA = kb.stack(byUnits ? stepsOfDepth * ldCopy : rowsAtOnce * ldCopy);
    if (layoutB != BLayout::packed)
      panels = kb.stack(columnsAtOnce * stepsOfDepth);

    // index = (batch, column chunk, row chunk), rows fastest.
    Val rowChunks = kb.ceilDiv(m, chunkM), columnChunks = kb.ceilDiv(n, chunkN);
    Val row0 = index % rowChunks * chunkM;
    Val rest = index / rowChunks;
    Val column0 = rest % columnChunks * chunkN;
    Val item = rest / columnChunks;
    Val rows = kb.min(chunkM, m - row0);
    Val columnEnd = kb.min(column0 + chunkN, n);
    Val a =
        kb.at(pointer(0), item * field(SA) + (transposedA ? row0 : row0 * lda),
              elementA);
    Val b = kb.at(pointer(1), item * field(SB), elementB);
    Val c = kb.at(pointer(2), item * field(SC) + row0 * ldc);

    Val rowBlocks = kb.ceilDiv(rows, rowsAtOnce);
    Val rowStep =
        kb.ceilDiv(kb.ceilDiv(rows, rowBlocks), family.rows) * family.rows;
    // k = 0 still writes zeros: one block of depth 0.
    Val depthEnd = kb.max(k, kb.i(1));

    kb.forLoop(column0, columnEnd, columnsAtOnce, [&](Val column) {
      Val columns = kb.min(columnEnd - column, kb.i(columnsAtOnce));
      kb.forLoop(kb.i(0), depthEnd, depth, [&](Val k0) {
        Val depthHere = kb.min(k - k0, kb.i(depth));
        Val accumulate = kb.select(k0 > 0, kb.i(1), kb.i(0));
        // Panels made here are f32, or pairs for the units.
        Read read = byUnits                      ? Read::units
                    : layoutB != BLayout::packed ? Read::f32
                    : hasPairs(storedB)          ? Read::pairs
                                                 : readOf(storedB);
        auto multiply = [&](Val blockOfB, Val strideOfB, Val panelStride) {
          kb.forLoop(kb.i(0), rows, rowStep, [&](Val row) {
            Val height = kb.min(rows - row, rowStep);
            Val blockOfA, strideOfA;
            if (copiesA) {
              LLVM::LLVMFuncOp copy = byUnits       ? getInterleave()
                                      : transposedA ? getTranspose(storedA)
                                                    : getWiden(storedA);
              Val at = transposedA ? k0 * lda + row : row * lda + k0;
              kb.call(copy, {kb.at(a, at, elementA), lda,
                             transposedA ? depthHere : height,
                             transposedA ? height : depthHere, copyOfA,
                             kb.i(ldCopy)});
              blockOfA = copyOfA;
              strideOfA = kb.i(ldCopy);
            } else {
              blockOfA = kb.at(a, row * lda + k0, elementA);
              strideOfA = lda;
            }
            kb.call(getBlock(byUnits && copiesA, read),
                    {blockOfA, strideOfA, blockOfB, strideOfB, panelStride,
                     kb.at(c, row * ldc + column), ldc, height, columns,
                     depthHere, accumulate});
          });
        };
        auto pack = [&] {
          Val panelStride = kb.i(stepsOfDepth * panel);
          if (layoutB == BLayout::rows && !byUnits)
            kb.call(getPack(storedB),
                    {kb.at(b, k0 * ldb + column, elementB), ldb, depthHere,
                     columns, panels, panelStride});
          else
            kb.forLoop(kb.i(0), columns, panel, [&](Val j) {
              Val width = kb.min(columns - j, kb.i(panel));
              Val target = kb.at(panels, j * stepsOfDepth);
              if (layoutB == BLayout::rows)
                kb.call(getInterleave(),
                        {kb.at(b, k0 * ldb + column + j, elementB), ldb,
                         depthHere, width, target, kb.i(panel)});
              else
                kb.call(byUnits ? getTransposePairs() : getTranspose(storedB),
                        {kb.at(b, (column + j) * ldb + k0, elementB), ldb,
                         width, depthHere, target, kb.i(panel)});
            });
          multiply(panels, kb.i(panel), panelStride);
        };
        if (layoutB == BLayout::packed) {
          Val rowsOfPanel = hasPairs(storedB) ? kb.ceilDiv(k, 2) * 2 : k;
          Val stride = rowsOfPanel * panel;
          multiply(kb.at(b, column * rowsOfPanel + k0 * panel, elementB),
                   kb.i(panel), hasPairs(storedB) ? stride / 2 : stride);
        } else if (layoutB == BLayout::transposed || storedB != Stored::f32)
          pack();
        else
          kb.ifThen(
              rows <= kTilesWithoutPacking * family.rows,
              [&] { multiply(kb.at(b, k0 * ldb + column), ldb, kb.i(panel)); },
              pack);
      });
    });
  });
}

LLVM::LLVMFuncOp GemmBuilder::getGemm(bool transposedA, BLayout layoutB,
                                      Stored storedA, Stored storedB) {
  KernelBuilder &kb = getBuilder();
  Type ptr = kb.ptr(), i64 = kb.i64();
  std::string name =
      "mgq_gemm_" + suffix(transposedA, layoutB, storedA, storedB);
  return kb.function(name, {ptr, ptr, ptr, ptr}, [&](Vals args) {
    Val context = kb.stack(4, ptr);
    for (auto [i, argument] : llvm::enumerate(args))
      kb.store(argument, kb.at(context, i, ptr));
    auto field = [&](Field f) { return kb.load(i64, kb.at(args[3], f, i64)); };
    Val chunks = field(BATCH) * kb.ceilDiv(field(M), field(CHUNK_M)) *
                 kb.ceilDiv(field(N), field(CHUNK_N));
    kb.parallelFor(getGemmChunk(transposedA, layoutB, storedA, storedB),
                   context, chunks);
  });
}

/// Fills `panel`, [rows][panel()] of f32, with `width` columns of B,
/// [rows][ldb] or [width][ldb] at `source`, and zeros.
void GemmBuilder::packPanel(bool transposedB, Stored storedB, Val source,
                            Val ldb, Val rows, Val width, Val panel) {
  KernelBuilder &kb = getBuilder();
  const int64_t columns = getFamily().panel();
  if (!transposedB) {
    kb.call(getPack(storedB),
            {source, ldb, rows, width, panel, rows * columns});
    return;
  }
  // The transposition leaves the last vector out if no row is there.
  kb.ifThen(width <= getFamily().lanes, [&] {
    kb.forLoop(kb.i(0), rows, 1, [&](Val row) {
      kb.store(kb.splat(0.0f), kb.at(panel, row * columns + getFamily().lanes));
    });
  });
  kb.call(getTranspose(storedB),
          {source, ldb, width, rows, panel, kb.i(columns)});
}

static std::string packName(bool transposedB, Stored from, Stored to) {
  return std::string("mgq_pack_b_") + (transposedB ? "t" : "n") +
         suffixOf(from) + (from == to ? "" : "_to" + suffixOf(to));
}

/// chunk(context, panel), with context = {B, target, {n, k, ldb}}.
LLVM::LLVMFuncOp GemmBuilder::getPackChunk(bool transposedB, Stored from,
                                           Stored to) {
  KernelBuilder &kb = getBuilder();
  Type ptr = kb.ptr(), i64 = kb.i64(), element = elementType(kb, from);
  Type elementTo = elementType(kb, to);
  const int64_t panel = getFamily().panel(), lanes = getFamily().lanes,
                depth = getFamily().depth;
  std::string name = packName(transposedB, from, to) + "_chunk";
  return kb.function(name, {ptr, i64}, [&](Vals args) {
    Val wide;
    if (to != Stored::f32)
      wide = kb.stack(depth * panel);
    auto pointer = [&](int64_t i) {
      return kb.load(ptr, kb.at(args[0], i, ptr));
    };
    Val sizes = pointer(2);
    auto size = [&](int64_t i) { return kb.load(i64, kb.at(sizes, i, i64)); };
    Val n = size(0), k = size(1), ldb = size(2);
    Val column = args[1] * panel;
    Val width = kb.min(n - column, kb.i(panel));
    Val source =
        kb.at(pointer(0), transposedB ? column * ldb : column, element);
    const bool inPairs = hasPairs(to);
    Val rowsOfPanel = inPairs ? kb.ceilDiv(k, 2) * 2 : k;
    Val target = kb.at(pointer(1), column * rowsOfPanel, elementTo);
    if (to == Stored::f32) {
      packPanel(transposedB, from, source, ldb, k, width, target);
      return;
    }
    // By way of f32, so that bf16 is transposed in registers too.
    kb.forLoop(kb.i(0), k, depth, [&](Val k0) {
      Val rows = kb.min(k - k0, kb.i(depth));
      packPanel(transposedB, from,
                kb.at(source, transposedB ? k0 : k0 * ldb, element), ldb, rows,
                width, wide);
      auto load = [&](Val row, int64_t column) {
        Val value = kb.load(kb.vec(), kb.at(wide, row * panel + column));
        return from == to ? value : roundTo(kb, to, value);
      };
      auto store = [&](Val low, Val high, Val row, int64_t column) {
        storePair(kb, to, low, high,
                  kb.at(target, (k0 + row) * panel + column, elementTo));
      };
      if (!inPairs) {
        kb.forLoop(kb.i(0), rows, 1, [&](Val row) {
          store(load(row, 0), load(row, lanes), row, 0);
        });
        return;
      }
      Val even = rows - rows % 2;
      for (int64_t column = 0; column < panel; column += lanes) {
        kb.forLoop(kb.i(0), even, 2, [&](Val row) {
          store(load(row, column), load(row + 1, column), row, 2 * column);
        });
        kb.ifThen(even < rows, [&] {
          store(load(even, column), kb.splat(0.0f), even, 2 * column);
        });
      }
    });
  });
}

LLVM::LLVMFuncOp GemmBuilder::getPackB(bool transposedB, Stored from,
                                       Stored to) {
  KernelBuilder &kb = getBuilder();
  Type ptr = kb.ptr(), i64 = kb.i64();
  std::string name = packName(transposedB, from, to);
  return kb.function(name, {ptr, ptr, ptr}, [&](Vals args) {
    Val context = kb.stack(3, ptr);
    for (auto [i, argument] : llvm::enumerate(args))
      kb.store(argument, kb.at(context, i, ptr));
    Val n = kb.load(i64, args[2]);
    kb.parallelFor(getPackChunk(transposedB, from, to), context,
                   kb.ceilDiv(n, getFamily().panel()));
  });
}
