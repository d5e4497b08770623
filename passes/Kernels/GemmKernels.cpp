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
static constexpr const char *kReadNames[] = {"", "_f16", "_bf16", "_pairs",
                                             "_units"};

static bool isInPairs(Read read) {
  return read == Read::pairs || read == Read::units;
}

/// The type that strides of B's panels count in.
static Type elementOfB(KernelBuilder &kb, Read read) {
  return read == Read::f16 || read == Read::bf16
             ? Type(kb.getOps().getI16Type())
             : kb.f32();
}
/// The type that strides of A count in.
static Type elementOfA(KernelBuilder &kb, Read read, bool transposedA) {
  return read == Read::units && !transposedA ? Type(kb.getOps().getI16Type())
                                             : kb.f32();
}

/// sum + a's pairs times b's, summed in each lane by the CPU's bf16 unit.
static Val dotPairs(KernelBuilder &kb, Val sum, Val a, Val b) {
  OpBuilder &ops = kb.getOps();
  auto type = VectorType::get({2 * kb.getLanes()}, ops.getBF16Type());
  auto cast = [&](Val value) -> Value {
    return LLVM::BitcastOp::create(ops, kb.getLoc(), type, value);
  };
  return Val(kb, LLVM::CallIntrinsicOp::create(
                     ops, kb.getLoc(), kb.vec(),
                     ops.getStringAttr("llvm.x86.avx512bf16.dpbf16ps.512"),
                     ValueRange{sum, cast(a), cast(b)})
                     .getResult(0));
}

/// What a tile knows of its operands.
struct GemmKernels::Tile {
  int64_t rows, vectors;
  bool transposedA;
  Read read;
  Val a, lda, b, ldb;
  /// The lanes of the last vector of B that there are; null: all.
  Val mask;
};

/// One step of k.
void GemmKernels::addProducts(const Tile &tile, Val k, Vals &sums) {
  Val row = kb.at(tile.b, k * tile.ldb, elementOfB(kb, tile.read));
  Vals factors;
  if (tile.read != Read::f32)
    factors.append(
        loadPair(kb, tile.read == Read::f16 ? Stored::f16 : Stored::bf16, row));
  else
    for (int64_t j = 0; j < tile.vectors; ++j) {
      Val at = kb.at(row, j * family.lanes);
      factors.push_back(tile.mask && j == tile.vectors - 1
                            ? kb.maskedLoad(at, tile.mask)
                            : kb.load(kb.vec(), at));
    }
  for (int64_t m = 0; m < tile.rows; ++m) {
    Val element =
        kb.at(tile.a, tile.transposedA ? k * tile.lda + m : tile.lda * m + k);
    Val broadcast = kb.splat(kb.load(kb.f32(), element));
    for (int64_t j = 0; j < tile.vectors; ++j) {
      Val &sum = sums[m * tile.vectors + j];
      sum = kb.fma(broadcast, factors[j], sum);
    }
  }
}

/// Two steps of k, by pairs; one if `isLast` is a k without a partner.
void GemmKernels::addPairs(const Tile &tile, Val pair, bool isLast,
                           Vals &sums) {
  const bool byUnits = tile.read == Read::units;
  Type i16 = kb.getOps().getI16Type();
  Vals low, high;
  for (int64_t j = 0; j < tile.vectors; ++j) {
    Val at = kb.at(tile.b, pair * tile.ldb + j * family.lanes);
    if (byUnits) {
      low.push_back(kb.load(kb.vec(), at));
      continue;
    }
    SmallVector<Val, 2> wide = loadPair(kb, Stored::bf16, at);
    low.push_back(wide[0]);
    high.push_back(wide[1]);
  }
  auto add = [&](int64_t m, Val a, const Vals &factors) {
    for (int64_t j = 0; j < tile.vectors; ++j) {
      Val &sum = sums[m * tile.vectors + j];
      sum = byUnits ? dotPairs(kb, sum, a, factors[j])
                    : kb.fma(a, factors[j], sum);
    }
  };
  for (int64_t m = 0; m < tile.rows; ++m) {
    if (byUnits) {
      Val bits;
      if (tile.transposedA)
        bits = kb.load(kb.f32(), kb.at(tile.a, pair * tile.lda + m));
      else if (!isLast)
        bits = kb.load(kb.f32(), kb.at(tile.a, tile.lda * m + pair * 2, i16),
                       /*alignment=*/2);
      else
        bits = loadLow(kb, kb.at(tile.a, tile.lda * m + pair * 2, i16));
      add(m, kb.splat(bits), low);
      continue;
    }
    auto broadcast = [&](Val k) {
      Val at =
          kb.at(tile.a, tile.transposedA ? k * tile.lda + m : tile.lda * m + k);
      return kb.splat(kb.load(kb.f32(), at));
    };
    add(m, broadcast(pair * 2), low);
    if (!isLast)
      add(m, broadcast(pair * 2 + 1), high);
  }
}

LLVM::LLVMFuncOp GemmKernels::getTile(int64_t rows, bool transposedA,
                                      Width width, Read read) {
  std::string name = "mgq_tile_" + std::to_string(rows) +
                     (transposedA ? "_t_" : "_n_") + kWidthNames[int(width)] +
                     kReadNames[int(read)];
  Type ptr = kb.ptr(), i64 = kb.i64();
  SmallVector<Type> arguments = {ptr, i64, ptr, i64, ptr, i64, i64, i64, i64};
  return kb.function(name, arguments, [&](Vals args) {
    Val c = args[4], ldc = args[5], columns = args[6], depth = args[7],
        accumulate = args[8];
    const int64_t lanes = family.lanes;
    const int64_t vectors = width == Width::narrow ? 1 : 2;
    Tile tile{rows,    vectors, transposedA, read, args[0],
              args[1], args[2], args[3],     {}};
    // Only the last vector can be short.
    if (width != Width::full)
      tile.mask = kb.laneMask(columns - (vectors - 1) * lanes);
    auto isMasked = [&](int64_t j) { return tile.mask && j == vectors - 1; };

    SmallVector<Val> rowsOfC;
    for (int64_t m = 0; m < rows; ++m)
      rowsOfC.push_back(kb.at(c, ldc * m));
    Vals sums = kb.ifElse(
        accumulate != 0,
        [&] {
          Vals loaded;
          for (Val row : rowsOfC)
            for (int64_t j = 0; j < vectors; ++j) {
              Val at = kb.at(row, j * lanes);
              loaded.push_back(isMasked(j) ? kb.maskedLoad(at, tile.mask)
                                           : kb.load(kb.vec(), at));
            }
          return loaded;
        },
        [&] { return Vals(rows * vectors, kb.splat(0.0f)); });

    const bool inPairs = isInPairs(read);
    Val steps = inPairs ? depth / 2 : depth;
    sums = kb.forLoop(kb.i(0), steps, 1, sums, [&](Val step, Vals sums) {
      if (inPairs)
        addPairs(tile, step, /*isLast=*/false, sums);
      else
        addProducts(tile, step, sums);
      return sums;
    });
    if (inPairs)
      sums = kb.ifElse(
          depth % 2 != 0,
          [&] {
            Vals last = sums;
            addPairs(tile, steps, /*isLast=*/true, last);
            return last;
          },
          [&] { return sums; });

    for (int64_t m = 0; m < rows; ++m)
      for (int64_t j = 0; j < vectors; ++j) {
        Val at = kb.at(rowsOfC[m], j * lanes);
        if (isMasked(j))
          kb.maskedStore(sums[m * vectors + j], at, tile.mask);
        else
          kb.store(sums[m * vectors + j], at);
      }
  });
}

/// All rows of one panel of B: tiles of balanced heights, through a table of
/// the tile functions.
LLVM::LLVMFuncOp GemmKernels::getPanel(bool transposedA, Width width,
                                       Read read) {
  std::string suffix = (transposedA ? "t_" : "n_") +
                       std::string(kWidthNames[int(width)]) +
                       kReadNames[int(read)];
  Type elementA = elementOfA(kb, read, transposedA);
  Type ptr = kb.ptr(), i64 = kb.i64();
  SmallVector<Type> arguments = {ptr, i64, ptr, i64, ptr,
                                 i64, i64, i64, i64, i64};
  return kb.function("mgq_panel_" + suffix, arguments, [&](Vals args) {
    Val a = args[0], lda = args[1], b = args[2], ldb = args[3], c = args[4],
        ldc = args[5], rows = args[6], columns = args[7], depth = args[8],
        accumulate = args[9];
    SmallVector<LLVM::LLVMFuncOp> tiles;
    for (int64_t m = 1; m <= family.rows; ++m)
      tiles.push_back(getTile(m, transposedA, width, read));
    Val table = kb.address(kb.table("mgq_tiles_" + suffix, tiles));

    Val count = kb.ceilDiv(rows, family.rows);
    Val height = rows / count, higher = rows % count;
    auto run = [&](Val from, Val tileCount, Val tileHeight) {
      Val entry = kb.at(table, tileHeight - 1, ptr);
      Val function = kb.load(ptr, entry);
      kb.forLoop(kb.i(0), tileCount, 1, [&](Val tile) {
        Val row = from + tile * tileHeight;
        Val rowOfA = kb.at(a, transposedA ? row : row * lda, elementA);
        kb.callPointer(tiles[0], function,
                       {rowOfA, lda, b, ldb, kb.at(c, row * ldc), ldc, columns,
                        depth, accumulate});
      });
    };
    kb.ifThen(higher > 0, [&] { run(kb.i(0), higher, height + 1); });
    run(higher * (height + 1), count - higher, height);
  });
}

LLVM::LLVMFuncOp GemmKernels::getBlock(bool transposedA, Read read) {
  Type ptr = kb.ptr(), i64 = kb.i64();
  SmallVector<Type> arguments = {ptr, i64, ptr, i64, i64, ptr,
                                 i64, i64, i64, i64, i64};
  std::string name = std::string(transposedA ? "mgq_block_t" : "mgq_block_n") +
                     kReadNames[int(read)];
  Type element = elementOfB(kb, read);
  return kb.function(name, arguments, [&](Vals args) {
    Val a = args[0], lda = args[1], b = args[2], ldb = args[3],
        panelStride = args[4], c = args[5], ldc = args[6], rows = args[7],
        columns = args[8], depth = args[9], accumulate = args[10];
    const int64_t panel = family.panel();
    auto run = [&](Width width, Val index, Val width_) {
      kb.call(getPanel(transposedA, width, read),
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

/// A matrix of 32 bits in memory of another type.
struct GemmKernels::Source {
  /// Elements of memory in an element of the matrix, and their type.
  int64_t scale;
  Type element;
  /// A vector; a vector of which only the masked lanes are there.
  std::function<Val(Val)> load;
  std::function<Val(Val, Val)> loadMasked;
};

LLVM::LLVMFuncOp GemmKernels::getTranspose(Stored stored) {
  Source source{
      1, elementType(kb, stored),
      [&](Val at) { return loadWide(kb, stored, at); },
      [&](Val at, Val mask) { return maskedLoadWide(kb, stored, at, mask); }};
  return makeTranspose("mgq_transpose" + suffixOf(stored), source);
}

/// Pairs are what f32 is: 32 bits. What is left of a row of odd length is
/// added one by one.
LLVM::LLVMFuncOp GemmKernels::getTransposePairs() {
  Type ptr = kb.ptr(), i64 = kb.i64(), i16 = kb.getOps().getI16Type();
  Source source{
      2, i16, [&](Val at) { return kb.load(kb.vec(), at, 2); },
      [&](Val at, Val mask) { return kb.maskedLoad(at, mask, {}, 2); }};
  LLVM::LLVMFuncOp whole = makeTranspose("mgq_transpose_whole_pairs", source);
  SmallVector<Type> arguments = {ptr, i64, i64, i64, ptr, i64};
  return kb.function("mgq_transpose_pairs", arguments, [&](Vals args) {
    Val from = args[0], ld = args[1], rows = args[2], columns = args[3],
        target = args[4], ldTarget = args[5];
    Val pairs = columns / 2;
    kb.call(whole, {from, ld, rows, pairs, target, ldTarget});
    kb.ifThen(columns % 2 != 0, [&] {
      kb.forLoop(kb.i(0), rows, 1, [&](Val row) {
        Val last = loadLow(kb, kb.at(from, row * ld + columns - 1, i16));
        kb.store(last, kb.at(target, pairs * ldTarget + row));
      });
    });
  });
}

LLVM::LLVMFuncOp GemmKernels::getInterleave() {
  Type ptr = kb.ptr(), i64 = kb.i64(), i16 = kb.getOps().getI16Type();
  SmallVector<Type> arguments = {ptr, i64, i64, i64, ptr, i64};
  return kb.function("mgq_interleave", arguments, [&](Vals args) {
    Val source = args[0], ld = args[1], rows = args[2], columns = args[3],
        target = args[4], ldTarget = args[5];
    const int64_t lanes = family.lanes;
    auto copyRows = [&](Val row, bool hasPartner) {
      auto copy = [&](Val column, Val mask) {
        auto load = [&](Val from) {
          Val at = kb.at(source, from * ld + column, i16);
          return mask ? maskedLoadWide(kb, Stored::bf16, at, mask)
                      : loadWide(kb, Stored::bf16, at);
        };
        Val high = hasPartner ? load(row + 1) : kb.splat(0.0f);
        storePair(kb, Stored::bf16, load(row), high,
                  kb.at(target, row / 2 * ldTarget + column));
      };
      Val whole = columns - columns % lanes;
      kb.forLoop(kb.i(0), whole, lanes,
                 [&](Val column) { copy(column, Val()); });
      kb.ifThen(whole < columns,
                [&] { copy(whole, kb.laneMask(columns - whole)); });
    };
    Val even = rows - rows % 2;
    kb.forLoop(kb.i(0), even, 2, [&](Val row) { copyRows(row, true); });
    kb.ifThen(even < rows, [&] { copyRows(even, false); });
  });
}

LLVM::LLVMFuncOp GemmKernels::makeTranspose(StringRef name,
                                            const Source &matrix) {
  Type ptr = kb.ptr(), i64 = kb.i64();
  SmallVector<Type> arguments = {ptr, i64, i64, i64, ptr, i64};
  return kb.function(name, arguments, [&](Vals args) {
    Val source = args[0], ld = args[1], rows = args[2], columns = args[3],
        target = args[4], ldTarget = args[5];
    const int64_t lanes = family.lanes;
    auto at = [&](Val row, Val column) {
      return kb.at(source, row * ld + column * matrix.scale, matrix.element);
    };
    Val corner = kb.stack(lanes * lanes);
    kb.forLoop(kb.i(0), rows, lanes, [&](Val row) {
      Val rowsLeft = rows - row;
      Val wholeColumns =
          kb.select(rowsLeft >= lanes, columns - columns % lanes, kb.i(0));
      kb.forLoop(kb.i(0), wholeColumns, lanes, [&](Val column) {
        Vals block;
        for (int64_t r = 0; r < lanes; ++r)
          block.push_back(matrix.load(at(row + r, column)));
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
          block.push_back(
              matrix.loadMasked(at(row + r, column), kb.laneMask(there)));
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
