//===- Compression.cpp - Kernels of compressed gradients ------------------===//
//
// Adds to a module of kernels
//
//   mgq_cuda_encode, mgq_cuda_combine, mgq_cuda_decode
//
// host functions that launch kernels (mgq_cuda_compression in
// runtime/include/rt_cuda.h): a warp for each block of values.
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Cuda/BlockCode.h"
#include "passes/Kernels/Cuda/Distribute.h"
#include "runtime/include/rt_cuda.h"

#include "llvm/ADT/StringSwitch.h"

namespace mgq::kernels {
#define GEN_PASS_DEF_CUDAADDCOMPRESSIONPASS
#include "passes/Kernels/Cuda/Passes.h.inc"
} // namespace mgq::kernels

using namespace mlir;
using namespace mgq::kernels;

namespace {
class CompressionWriter : public RuntimeKernelWriter {
public:
  CompressionWriter(ModuleOp module, BlockFormat format)
      : RuntimeKernelWriter(module), format(format) {}

  void addEncode();
  void addCombine();
  void addDecode();

private:
  /// The first parameters of all kernels.
  enum { blocks, count, first, others };
  /// Writes a lane's code from the kernel's parameters and the block's number.
  using Body = llvm::function_ref<void(BlockCode &, ValueRange, Value)>;
  void add(StringRef name, ArrayRef<Type> types, Body body);

  Value elements(Value base, Value index, int64_t size);
  LaneValues zip(const LaneValues &x, const LaneValues &y,
                 llvm::function_ref<Value(ScalarBuilder &, Value, Value)> op);
  LaneValues sum(const LaneValues &x, const LaneValues &y);
  LaneValues difference(const LaneValues &x, const LaneValues &y);

  BlockFormat format;
};
} // namespace

/// A kernel with a warp for each block, and its host function mgq_cuda_NAME.
/// `types` are those of the parameters behind `first`.
void CompressionWriter::add(StringRef name, ArrayRef<Type> types, Body body) {
  Type i64 = b.getI64Type();
  SmallVector<Type> all = {pointer, i64, i64};
  all.append(types.begin(), types.end());
  auto function = kernel(("mgq_" + name).str(), all);
  Writer w(b, loc);
  ValueRange in = function.getBody().front().getArguments();
  Value thread = gpu::ThreadIdOp::create(b, loc, gpu::Dimension::x);
  Value block = gpu::BlockIdOp::create(b, loc, gpu::Dimension::x);
  constexpr int64_t warps = kRuntimeThreads / kWarp;
  Value warp = w.s.add(w.s.mul(block, w.s.index(warps)),
                       w.s.div(thread, w.s.index(kWarp), /*isUnsigned=*/true));
  Value lane = w.s.fromIndex(
      w.s.rem(thread, w.s.index(kWarp), /*isUnsigned=*/true), b.getI32Type());
  Value number = w.toI64(warp);
  Value inside = w.s.compare(mgq::nn::ComparePredicate::Lt, number, in[count]);
  auto guard = scf::IfOp::create(b, loc, inside, /*withElseRegion=*/false);
  gpu::ReturnOp::create(b, loc);
  b.setInsertionPoint(guard.thenBlock()->getTerminator());
  BlockCode code(b, loc, format, lane,
                 elements(in[blocks], number, sizeof(mgq_cuda_block)),
                 in[first]);
  body(code, in, number);

  auto caller = host(("mgq_cuda_" + name).str(), all);
  launch(function, blocksOf(caller.getArgument(count), warps),
         caller.getArguments());
  LLVM::ReturnOp::create(b, loc, ValueRange());
}

/// The address of an element of `size` bytes; `index` is i64.
Value CompressionWriter::elements(Value base, Value index, int64_t size) {
  Writer w(b, loc);
  return w.address(base, w.s.mul(index, w.i64(size)), b.getI8Type());
}

LaneValues CompressionWriter::zip(
    const LaneValues &x, const LaneValues &y,
    llvm::function_ref<Value(ScalarBuilder &, Value, Value)> op) {
  ScalarBuilder s(b, loc);
  LaneValues result;
  for (size_t i = 0; i < x.size(); ++i)
    result[i] = op(s, x[i], y[i]);
  return result;
}

LaneValues CompressionWriter::sum(const LaneValues &x, const LaneValues &y) {
  return zip(x, y,
             [](ScalarBuilder &s, Value a, Value c) { return s.add(a, c); });
}

LaneValues CompressionWriter::difference(const LaneValues &x,
                                         const LaneValues &y) {
  return zip(x, y,
             [](ScalarBuilder &s, Value a, Value c) { return s.sub(a, c); });
}

void CompressionWriter::addEncode() {
  enum { values = others, factor, residual, newResidual, to };
  add("encode", {pointer, b.getF32Type(), pointer, pointer, pointer},
      [&](BlockCode &code, ValueRange in, Value) {
        auto ofBlock = [&](Value base) {
          return elements(base, code.firstValue(), 4);
        };
        LaneValues factors;
        factors.fill(in[factor]);
        LaneValues x =
            zip(code.loadValues(ofBlock(in[values])), factors,
                [](ScalarBuilder &s, Value a, Value c) { return s.mul(a, c); });
        x = sum(x, code.loadValues(ofBlock(in[residual])));
        LaneCode encoded = code.pack(x);
        code.store(encoded, in[to]);
        code.storeValues(difference(x, code.unpack(encoded)),
                         ofBlock(in[newResidual]));
      });
}

void CompressionWriter::addCombine() {
  enum {
    pieces = others,
    stride,
    pieceCount,
    residual,
    newResidual,
    to,
    values
  };
  Type i64 = b.getI64Type();
  add("combine", {pointer, i64, i64, pointer, pointer, pointer, pointer},
      [&](BlockCode &code, ValueRange in, Value number) {
        ScalarBuilder s(b, loc);
        // What leaves everything as it is, zeros' signs, too.
        SmallVector<Value> none(LaneValues().size(),
                                s.constant(b.getF32Type(), -0.0));
        auto loop = scf::ForOp::create(
            b, loc, s.index(0), s.toIndex(in[pieceCount]), s.index(1), none);
        auto carried = [](ValueRange range) {
          LaneValues result;
          llvm::copy(range, result.begin());
          return result;
        };
        {
          OpBuilder::InsertionGuard guard(b);
          b.setInsertionPointToEnd(loop.getBody());
          Value at =
              s.mul(s.fromIndex(loop.getInductionVar(), i64), in[stride]);
          LaneCode piece = code.load(elements(in[pieces], at, 1));
          LaneValues next =
              sum(carried(loop.getRegionIterArgs()), code.unpack(piece));
          scf::YieldOp::create(b, loc,
                               ArrayRef<Value>(next.data(), next.size()));
        }
        Value dense = s.mul(number, s.constant(i64, 256 * 4));
        auto ofOwner = [&](Value base) { return elements(base, dense, 1); };
        LaneValues x = sum(carried(loop.getResults()),
                           code.loadValues(ofOwner(in[residual])));
        LaneCode encoded = code.pack(x);
        code.store(encoded, in[to]);
        LaneValues decoded = code.unpack(encoded);
        code.storeValues(difference(x, decoded), ofOwner(in[newResidual]));
        code.storeValues(decoded, elements(in[values], code.firstValue(), 4));
      });
}

void CompressionWriter::addDecode() {
  enum { from = others, values };
  add("decode", {pointer, pointer}, [&](BlockCode &code, ValueRange in, Value) {
    code.storeValues(code.unpack(code.load(in[from])),
                     elements(in[values], code.firstValue(), 4));
  });
}

namespace {
struct CudaAddCompressionPass
    : mgq::kernels::impl::CudaAddCompressionPassBase<CudaAddCompressionPass> {
  using CudaAddCompressionPassBase::CudaAddCompressionPassBase;

  void runOnOperation() override {
    auto its = llvm::StringSwitch<std::optional<BlockFormat>>(format)
                   .Case("bf16", BlockFormat::BF16)
                   .Case("sparse24", BlockFormat::Sparse24)
                   .Case("sparse24-int8", BlockFormat::Sparse24Int8)
                   .Default(std::nullopt);
    if (!its) {
      getOperation().emitError("cuda-add-compression: format is '")
          << format << "', expected bf16, sparse24 or sparse24-int8";
      return signalPassFailure();
    }
    if (getOperation().lookupSymbol("mgq_cuda_encode"))
      return;
    CompressionWriter writer(getOperation(), *its);
    writer.addEncode();
    writer.addCombine();
    writer.addDecode();
  }
};
} // namespace
