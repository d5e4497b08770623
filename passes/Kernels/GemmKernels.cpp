//===- GemmKernels.cpp - Micro-kernels and packing of matrix products -----===//
//
// The tile: rows x 2 vectors of C stay in registers while k runs; a step loads
// 2 vectors of B, and for each row broadcasts one element of A:
//
//          B[k][0..V) B[k][V..2V)
//   A[0][k]   C00         C01
//   A[1][k]   C10         C11       C_mj = fma(A[m][k], B_j[k], C_mj)
//   ...
//
// m rows are t = ceil(m / rows) tiles of floor(m / t) or one more: 37 rows are
// 2 x 6 + 5 x 5, never 6 x 6 + 1, whose last tile would wait for latency.
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/GemmKernels.h"

#include "llvm/ADT/Sequence.h"

using namespace mlir;
using namespace mgq::kernels;

using Vals = KernelBuilder::Vals;

static constexpr const char *kWidthNames[] = {"full", "edge", "narrow"};

LLVM::LLVMFuncOp GemmKernels::getTile(int64_t rows, bool transposedA,
                                      Width width, Stored storedB) {
  std::string name = "mgq_tile_" + std::to_string(rows) +
                     (transposedA ? "_t_" : "_n_") + kWidthNames[int(width)] +
                     suffixOf(storedB);
  Type ptr = kb.ptr(), i64 = kb.i64();
  SmallVector<Type> arguments = {ptr, i64, ptr, i64, ptr, i64, i64, i64, i64};
  return kb.function(name, arguments, [&](Vals args) {
    Val a = args[0], lda = args[1], b = args[2], ldb = args[3], c = args[4],
        ldc = args[5], columns = args[6], depth = args[7], accumulate = args[8];
    const int64_t lanes = family.lanes;
    const int64_t vectors = width == Width::narrow ? 1 : 2;
    // Only the last vector can be short.
    const bool masked = width != Width::full;
    Val mask;
    if (masked)
      mask = kb.laneMask(columns - (vectors - 1) * lanes);
    auto isMasked = [&](int64_t j) { return masked && j == vectors - 1; };
    auto loadAt = [&](Val pointer, int64_t j) {
      Val at = kb.at(pointer, j * lanes);
      return isMasked(j) ? kb.maskedLoad(at, mask) : kb.load(kb.vec(), at);
    };

    SmallVector<Val> rowsOfC;
    for (int64_t m = 0; m < rows; ++m)
      rowsOfC.push_back(kb.at(c, ldc * m));
    Vals sums = kb.ifElse(
        accumulate != 0,
        [&] {
          Vals loaded;
          for (Val row : rowsOfC)
            for (int64_t j = 0; j < vectors; ++j)
              loaded.push_back(loadAt(row, j));
          return loaded;
        },
        [&] { return Vals(rows * vectors, kb.splat(0.0f)); });

    sums = kb.forLoop(kb.i(0), depth, 1, sums, [&](Val k, Vals sums) {
      Val rowOfB = kb.at(b, k * ldb, elementType(kb, storedB));
      Vals factors;
      if (storedB != Stored::f32)
        factors.append(loadPair(kb, storedB, rowOfB));
      else
        for (int64_t j = 0; j < vectors; ++j)
          factors.push_back(loadAt(rowOfB, j));
      for (int64_t m = 0; m < rows; ++m) {
        Val element = kb.at(a, transposedA ? k * lda + m : lda * m + k);
        Val broadcast = kb.splat(kb.load(kb.f32(), element));
        for (int64_t j = 0; j < vectors; ++j) {
          Val &sum = sums[m * vectors + j];
          sum = kb.fma(broadcast, factors[j], sum);
        }
      }
      return sums;
    });

    for (int64_t m = 0; m < rows; ++m)
      for (int64_t j = 0; j < vectors; ++j) {
        Val at = kb.at(rowsOfC[m], j * lanes);
        if (isMasked(j))
          kb.maskedStore(sums[m * vectors + j], at, mask);
        else
          kb.store(sums[m * vectors + j], at);
      }
  });
}

/// All rows of one panel of B: tiles of balanced heights, through a table of
/// the tile functions.
LLVM::LLVMFuncOp GemmKernels::getPanel(bool transposedA, Width width,
                                       Stored storedB) {
  std::string suffix = (transposedA ? "t_" : "n_") +
                       std::string(kWidthNames[int(width)]) + suffixOf(storedB);
  Type ptr = kb.ptr(), i64 = kb.i64();
  SmallVector<Type> arguments = {ptr, i64, ptr, i64, ptr,
                                 i64, i64, i64, i64, i64};
  return kb.function("mgq_panel_" + suffix, arguments, [&](Vals args) {
    Val a = args[0], lda = args[1], b = args[2], ldb = args[3], c = args[4],
        ldc = args[5], rows = args[6], columns = args[7], depth = args[8],
        accumulate = args[9];
    SmallVector<LLVM::LLVMFuncOp> tiles;
    for (int64_t m = 1; m <= family.rows; ++m)
      tiles.push_back(getTile(m, transposedA, width, storedB));
    Val table = kb.address(kb.table("mgq_tiles_" + suffix, tiles));

    Val count = kb.ceilDiv(rows, family.rows);
    Val height = rows / count, higher = rows % count;
    auto run = [&](Val from, Val tileCount, Val tileHeight) {
      Val entry = kb.at(table, tileHeight - 1, ptr);
      Val function = kb.load(ptr, entry);
      kb.forLoop(kb.i(0), tileCount, 1, [&](Val tile) {
        Val row = from + tile * tileHeight;
        Val rowOfA = kb.at(a, transposedA ? row : row * lda);
        kb.callPointer(tiles[0], function,
                       {rowOfA, lda, b, ldb, kb.at(c, row * ldc), ldc, columns,
                        depth, accumulate});
      });
    };
    kb.ifThen(higher > 0, [&] { run(kb.i(0), higher, height + 1); });
    run(higher * (height + 1), count - higher, height);
  });
}

LLVM::LLVMFuncOp GemmKernels::getBlock(bool transposedA, Stored storedB) {
  Type ptr = kb.ptr(), i64 = kb.i64();
  SmallVector<Type> arguments = {ptr, i64, ptr, i64, i64, ptr,
                                 i64, i64, i64, i64, i64};
  std::string name =
      (transposedA ? "mgq_block_t" : "mgq_block_n") + suffixOf(storedB);
  Type element = elementType(kb, storedB);
  return kb.function(name, arguments, [&](Vals args) {
    Val a = args[0], lda = args[1], b = args[2], ldb = args[3],
        panelStride = args[4], c = args[5], ldc = args[6], rows = args[7],
        columns = args[8], depth = args[9], accumulate = args[10];
    const int64_t panel = family.panel();
    auto run = [&](Width width, Val index, Val width_) {
      kb.call(getPanel(transposedA, width, storedB),
              {a, lda, kb.at(b, index * panelStride, element), ldb,
               kb.at(c, index * panel), ldc, rows, width_, depth, accumulate});
    };
    kb.ifThen(rows > 0, [&] {
      Val fullPanels = columns / panel, rest = columns % panel;
      kb.forLoop(kb.i(0), fullPanels, 1,
                 [&](Val j) { run(Width::full, j, kb.i(panel)); });
      kb.ifThen(rest > family.lanes,
                [&] { run(Width::edge, fullPanels, rest); });
      kb.ifThen((rest > 0) & (rest <= family.lanes),
                [&] { run(Width::narrow, fullPanels, rest); });
    });
  });
}

//===----------------------------------------------------------------------===//
// Packing
//===----------------------------------------------------------------------===//

/// Transposes lanes x lanes elements in registers.
void GemmKernels::transposeRegisters(Vals &rows) {
  const int64_t lanes = family.lanes;
  auto exchange = [&](int64_t distance,
                      function_ref<int64_t(int64_t, bool)> lane) {
    // Rows i and i + distance give two new rows.
    for (int64_t i = 0; i < lanes; ++i) {
      if (i & distance)
        continue;
      Val low = rows[i], high = rows[i + distance];
      for (bool second : {false, true}) {
        SmallVector<int64_t> mask;
        for (int64_t l = 0; l < lanes; ++l)
          mask.push_back(lane(l, second));
        rows[second ? i + distance : i] = kb.shuffle(low, high, mask);
      }
    }
  };
  // Element (i, l) and (i + d, l ^ d) of each 2 x 2 block of d x d blocks
  // change places: after all d, rows are columns.
  for (int64_t distance = 1; distance < lanes; distance *= 2)
    exchange(distance, [&](int64_t l, bool second) -> int64_t {
      bool fromHigh = (l & distance) != 0;
      int64_t source = second ? (l | distance) : (l & ~distance);
      return source + (fromHigh ? lanes : 0);
    });
}

LLVM::LLVMFuncOp GemmKernels::getTranspose(Stored stored) {
  Type ptr = kb.ptr(), i64 = kb.i64(), element = elementType(kb, stored);
  SmallVector<Type> arguments = {ptr, i64, i64, i64, ptr, i64};
  std::string name = "mgq_transpose" + suffixOf(stored);
  return kb.function(name, arguments, [&](Vals args) {
    Val source = args[0], ld = args[1], rows = args[2], columns = args[3],
        target = args[4], ldTarget = args[5];
    const int64_t lanes = family.lanes;
    Val corner = kb.stack(lanes * lanes);
    kb.forLoop(kb.i(0), rows, lanes, [&](Val row) {
      Val rowsLeft = rows - row;
      Val wholeColumns =
          kb.select(rowsLeft >= lanes, columns - columns % lanes, kb.i(0));
      kb.forLoop(kb.i(0), wholeColumns, lanes, [&](Val column) {
        Vals block;
        for (int64_t r = 0; r < lanes; ++r)
          block.push_back(loadWide(
              kb, stored, kb.at(source, (row + r) * ld + column, element)));
        transposeRegisters(block);
        for (int64_t r = 0; r < lanes; ++r)
          kb.store(block[r], kb.at(target, (column + r) * ldTarget + row));
      });
      // What is not a whole block: lanes that are not there read as 0; the
      // block goes through a buffer, which leaves rows past the end out.
      kb.forLoop(wholeColumns, columns, lanes, [&](Val column) {
        Val width = kb.min(columns - column, kb.i(lanes));
        Vals block;
        for (int64_t r = 0; r < lanes; ++r) {
          Val there = kb.select(rowsLeft > r, width, kb.i(0));
          block.push_back(maskedLoadWide(
              kb, stored, kb.at(source, (row + r) * ld + column, element),
              kb.laneMask(there)));
        }
        transposeRegisters(block);
        for (int64_t r = 0; r < lanes; ++r)
          kb.store(block[r], kb.at(corner, r * lanes));
        kb.forLoop(kb.i(0), width, 1, [&](Val r) {
          kb.store(kb.load(kb.vec(), kb.at(corner, r * lanes)),
                   kb.at(target, (column + r) * ldTarget + row));
        });
      });
    });
  });
}

LLVM::LLVMFuncOp GemmKernels::getPack(Stored stored) {
  Type ptr = kb.ptr(), i64 = kb.i64(), element = elementType(kb, stored);
  SmallVector<Type> arguments = {ptr, i64, i64, i64, ptr, i64};
  std::string name = "mgq_pack" + suffixOf(stored);
  return kb.function(name, arguments, [&](Vals args) {
    Val source = args[0], ld = args[1], rows = args[2], columns = args[3],
        target = args[4], panelStride = args[5];
    const int64_t lanes = family.lanes, panel = family.panel();
    // Rows outside: each is read in one go.
    Val panels = columns / panel, rest = columns % panel;
    auto copy = [&](Val row, Val index, function_ref<Val(Val, int64_t)> load) {
      Val from = kb.at(source, row * ld + index * panel, element);
      Val to = kb.at(target, index * panelStride + row * panel);
      for (int64_t j = 0; j < panel; j += lanes)
        kb.store(load(kb.at(from, j, element), j / lanes), kb.at(to, j));
    };
    kb.forLoop(kb.i(0), rows, 1, [&](Val row) {
      kb.forLoop(kb.i(0), panels, 1, [&](Val index) {
        copy(row, index,
             [&](Val at, int64_t) { return loadWide(kb, stored, at); });
      });
    });
    kb.ifThen(rest > 0, [&] {
      SmallVector<Val> masks;
      for (int64_t j = 0; j < panel; j += lanes)
        masks.push_back(kb.laneMask(rest - j));
      kb.forLoop(kb.i(0), rows, 1, [&](Val row) {
        copy(row, panels, [&](Val at, int64_t j) {
          return maskedLoadWide(kb, stored, at, masks[j]);
        });
      });
    });
  });
}

LLVM::LLVMFuncOp GemmKernels::getWiden(Stored stored) {
  Type ptr = kb.ptr(), i64 = kb.i64(), element = elementType(kb, stored);
  SmallVector<Type> arguments = {ptr, i64, i64, i64, ptr, i64};
  std::string name = "mgq_widen" + suffixOf(stored);
  return kb.function(name, arguments, [&](Vals args) {
    Val source = args[0], ld = args[1], rows = args[2], columns = args[3],
        target = args[4], ldTarget = args[5];
    const int64_t lanes = family.lanes;
    Val whole = columns - columns % lanes;
    Val mask = kb.laneMask(columns - whole);
    kb.forLoop(kb.i(0), rows, 1, [&](Val row) {
      Val from = kb.at(source, row * ld, element);
      Val to = kb.at(target, row * ldTarget);
      kb.forLoop(kb.i(0), whole, lanes, [&](Val column) {
        kb.store(loadWide(kb, stored, kb.at(from, column, element)),
                 kb.at(to, column));
      });
      kb.ifThen(whole < columns, [&] {
        kb.store(maskedLoadWide(kb, stored, kb.at(from, whole, element), mask),
                 kb.at(to, whole));
      });
    });
  });
}
