//===- HandKernels.cpp - Calls of generated kernels on memrefs ------------===//

#include "passes/Kernels/HandKernels.h"

#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "llvm/Support/raw_ostream.h"

using namespace mlir;
using namespace mgq::kernels;

KernelCalls::KernelCalls(ModuleOp module, CpuFamily family)
    : module(module), gemms(module, family) {}

Value mgq::kernels::makePointer(OpBuilder &b, Location loc, Value buffer) {
  auto type = cast<MemRefType>(buffer.getType());
  SmallVector<int64_t> strides;
  int64_t offset;
  if (failed(type.getStridesAndOffset(strides, offset)))
    llvm_unreachable("lowered buffers are strided");
  Value address = arith::IndexCastOp::create(
      b, loc, b.getI64Type(),
      memref::ExtractAlignedPointerAsIndexOp::create(b, loc, buffer));
  Type pointer = LLVM::LLVMPointerType::get(b.getContext());
  Value base = LLVM::IntToPtrOp::create(b, loc, pointer, address);
  if (offset == 0)
    return base;
  Value elements;
  if (offset != ShapedType::kDynamic) {
    elements = arith::ConstantOp::create(b, loc, b.getI64IntegerAttr(offset));
  } else {
    auto metadata = memref::ExtractStridedMetadataOp::create(b, loc, buffer);
    elements = arith::IndexCastOp::create(b, loc, b.getI64Type(),
                                          metadata.getOffset());
  }
  // Booleans are bytes in memory.
  Type element = type.getElementType();
  if (element.isInteger(1))
    element = b.getI8Type();
  return LLVM::GEPOp::create(b, loc, pointer, element, base,
                             ValueRange{elements});
}

func::FuncOp KernelCalls::makeFunction(StringRef name, LLVM::LLVMFuncOp kernel,
                                       ArrayRef<Value> buffers,
                                       ArrayRef<int64_t> fields) {
  KernelBuilder &kb = gemms.getBuilder();
  LLVM::GlobalOp table = kb.constants((name + "_shape").str(), fields);
  OpBuilder b(module.getContext());
  Location loc = kernel.getLoc();
  b.setInsertionPointToEnd(module.getBody());
  SmallVector<Type> types;
  for (Value buffer : buffers)
    if (buffer)
      types.push_back(buffer.getType());
  auto function =
      func::FuncOp::create(b, loc, name, b.getFunctionType(types, {}));
  function.setPrivate();
  kb.insert(function);

  b.setInsertionPointToStart(function.addEntryBlock());
  Type pointer = LLVM::LLVMPointerType::get(b.getContext());
  SmallVector<Value> arguments;
  unsigned next = 0;
  for (Value buffer : buffers) {
    if (buffer)
      arguments.push_back(makePointer(b, loc, function.getArgument(next++)));
    else
      arguments.push_back(LLVM::ZeroOp::create(b, loc, pointer));
  }
  arguments.push_back(LLVM::AddressOfOp::create(b, loc, table));
  LLVM::CallOp::create(b, loc, kernel, arguments);
  func::ReturnOp::create(b, loc);
  return function;
}

void KernelCalls::replace(Operation *op, StringRef name,
                          LLVM::LLVMFuncOp kernel, ArrayRef<Value> buffers,
                          ArrayRef<int64_t> fields) {
  OpBuilder b(op);
  call(b, op->getLoc(), name, kernel, buffers, fields);
  op->erase();
}

void KernelCalls::call(OpBuilder &b, Location loc, StringRef name,
                       LLVM::LLVMFuncOp kernel, ArrayRef<Value> buffers,
                       ArrayRef<int64_t> fields) {
  std::string key;
  llvm::raw_string_ostream stream(key);
  stream << kernel.getName();
  for (int64_t field : fields)
    stream << ' ' << field;
  SmallVector<Value> operands;
  for (Value buffer : buffers) {
    if (!buffer) {
      stream << " none";
      continue;
    }
    stream << ' ' << buffer.getType();
    operands.push_back(buffer);
  }
  func::FuncOp &function = functions[key];
  if (!function)
    function = makeFunction(name, kernel, buffers, fields);
  func::CallOp::create(b, loc, function, operands);
}
