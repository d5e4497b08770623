//===- KernelBuilder.h - Writes kernels as arithmetic on values -----------===//
//
// Hand-made kernels (matrix products, attention) are llvm.funcs on pointers and
// 64-bit integers whose bodies are scf, arith, vector and llvm ops; the common
// pipeline turns all of that into the LLVM dialect. `Val` is a value with
// operators, so that a generator reads like the loop nest it generates:
//
//   kb.forLoop(kb.i(0), rows, 1, [&](Val row) {
//     Val a = kb.load(kb.f32(), kb.at(base, row * stride + column));
//     ...
//   });
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_PASSES_KERNELS_KERNELBUILDER_H
#define MGQ_PASSES_KERNELS_KERNELBUILDER_H

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/SymbolTable.h"

namespace mgq::kernels {

class KernelBuilder;

/// A value with arithmetic: i64, f32, or vectors of f32.
class Val {
public:
  Val() = default;
  Val(KernelBuilder &kb, mlir::Value value) : kb(&kb), value(value) {}
  operator mlir::Value() const { return value; }
  mlir::Type getType() const { return value.getType(); }
  explicit operator bool() const { return bool(value); }
  KernelBuilder &getBuilder() const { return *kb; }

private:
  KernelBuilder *kb = nullptr;
  mlir::Value value;
};

Val operator+(Val a, Val b);
Val operator-(Val a, Val b);
Val operator*(Val a, Val b);
/// Integers: rounds towards zero.
Val operator/(Val a, Val b);
Val operator%(Val a, Val b);
Val operator&(Val a, Val b);
Val operator|(Val a, Val b);
Val operator<(Val a, Val b);
Val operator<=(Val a, Val b);
Val operator>(Val a, Val b);
Val operator>=(Val a, Val b);
Val operator==(Val a, Val b);
Val operator!=(Val a, Val b);
Val operator+(Val a, int64_t b);
Val operator-(Val a, int64_t b);
Val operator*(Val a, int64_t b);
Val operator/(Val a, int64_t b);
Val operator%(Val a, int64_t b);
Val operator<(Val a, int64_t b);
Val operator<=(Val a, int64_t b);
Val operator>(Val a, int64_t b);
Val operator>=(Val a, int64_t b);
Val operator==(Val a, int64_t b);
Val operator!=(Val a, int64_t b);

/// Writes one llvm.func after another into a module.
class KernelBuilder {
public:
  using Vals = llvm::SmallVector<Val, 16>;

  /// `lanes` f32 make a vector.
  KernelBuilder(mlir::ModuleOp module, int64_t lanes);

  int64_t getLanes() const { return lanes; }
  mlir::OpBuilder &getOps() { return b; }
  mlir::Location getLoc() const { return loc; }

  mlir::Type ptr() { return mlir::LLVM::LLVMPointerType::get(b.getContext()); }
  mlir::Type i64() { return b.getI64Type(); }
  mlir::Type i8() { return b.getI8Type(); }
  mlir::Type f32() { return b.getF32Type(); }
  mlir::VectorType vec() { return mlir::VectorType::get({lanes}, f32()); }

  /// Returns the function `name`; makes an internal one with `body` if the
  /// module has none yet.
  mlir::LLVM::LLVMFuncOp function(llvm::StringRef name,
                                  llvm::ArrayRef<mlir::Type> arguments,
                                  llvm::function_ref<void(Vals)> body);
  /// Declares an external function without a result.
  mlir::LLVM::LLVMFuncOp declare(llvm::StringRef name,
                                 llvm::ArrayRef<mlir::Type> arguments);
  /// A constant table of pointers to functions.
  mlir::LLVM::GlobalOp table(llvm::StringRef name,
                             llvm::ArrayRef<mlir::LLVM::LLVMFuncOp> functions);
  /// A constant table of integers with a name of its own.
  mlir::LLVM::GlobalOp constants(llvm::StringRef prefix,
                                 llvm::ArrayRef<int64_t> values);

  /// Adds an op with a symbol that stands in the module, with a new name if
  /// there is one of that name.
  void insert(mlir::Operation *op) { symbols.insert(op); }

  Val i(int64_t value);
  Val f(float value);
  /// A vector with `value` in every lane.
  Val splat(float value);
  Val splat(Val scalar);
  Val address(mlir::LLVM::LLVMFuncOp function);
  Val address(mlir::LLVM::GlobalOp global);

  Val min(Val a, Val b);
  Val max(Val a, Val b);
  Val ceilDiv(Val a, Val b) { return (a + b - 1) / b; }
  Val ceilDiv(Val a, int64_t b) { return (a + (b - 1)) / b; }
  Val select(Val condition, Val then, Val otherwise);
  /// a * b + c, rounded once.
  Val fma(Val a, Val b, Val c);
  /// The larger of two floats; one instruction, so the second of them if either
  /// is NaN.
  Val maxf(Val a, Val b);
  /// Largest and sum of a vector's lanes, in an order that only depends on the
  /// number of lanes.
  Val reduceMax(Val vector);
  Val reduceSum(Val vector);
  /// Lanes from a and b (numbered after a's).
  Val shuffle(Val a, Val b, llvm::ArrayRef<int64_t> lanes);

  /// base + index elements (f32 if no type is given).
  Val at(Val base, Val index, mlir::Type element = {});
  Val at(Val base, int64_t index, mlir::Type element = {});
  /// Loads and stores assume the alignment of an element only, or `alignment`
  /// bytes.
  Val load(mlir::Type type, Val pointer, unsigned alignment = 0);
  void store(Val value, Val pointer);
  /// Lane numbers below `count` are set.
  Val laneMask(Val count);
  /// Lanes outside the mask are not read and are 0.
  Val maskedLoad(Val pointer, Val mask, mlir::VectorType type = {},
                 unsigned alignment = 0);
  void maskedStore(Val value, Val pointer, Val mask);
  /// A block of the function's frame, 64-byte aligned; call it at the top.
  Val stack(Val elements, mlir::Type element = {});
  Val stack(int64_t elements, mlir::Type element = {});

  void call(mlir::LLVM::LLVMFuncOp function, llvm::ArrayRef<Val> arguments);
  /// Calls through a pointer a function like `like`.
  void callPointer(mlir::LLVM::LLVMFuncOp like, Val pointer,
                   llvm::ArrayRef<Val> arguments);

  /// Runs body(context, 0 .. count - 1) on the compute threads; a single one
  /// right here.
  void parallelFor(mlir::LLVM::LLVMFuncOp body, Val context, Val count);

  void forLoop(Val from, Val to, int64_t step,
               llvm::function_ref<void(Val)> body);
  void forLoop(Val from, Val to, Val step, llvm::function_ref<void(Val)> body);
  /// A loop that carries values.
  Vals forLoop(Val from, Val to, int64_t step, llvm::ArrayRef<Val> inits,
               llvm::function_ref<Vals(Val, Vals)> body);
  void ifThen(Val condition, llvm::function_ref<void()> then,
              llvm::function_ref<void()> otherwise = nullptr);
  Vals ifElse(Val condition, llvm::function_ref<Vals()> then,
              llvm::function_ref<Vals()> otherwise);

private:
  Vals wrap(mlir::ValueRange values);
  static llvm::SmallVector<mlir::Value> unwrap(llvm::ArrayRef<Val> values);

  mlir::ModuleOp module;
  mlir::SymbolTable symbols;
  mlir::OpBuilder b;
  mlir::Location loc;
  int64_t lanes;
};

} // namespace mgq::kernels

#endif // MGQ_PASSES_KERNELS_KERNELBUILDER_H
