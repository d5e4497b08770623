; product.ll - y (16 x 8, f32) = A (16 x 16) B (16 x 8), of one warp. x holds, in
; bf16, A by rows, then B by columns. A goes through cp.async and ldmatrix; the
; line with wait.group is what a test leaves out.
target datalayout = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"
target triple = "nvptx64-nvidia-cuda"

@tile = internal addrspace(3) global [256 x i16] undef, align 16

define ptx_kernel void @product(ptr %x, ptr %y) {
  %lane = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  ; Each lane copies eight elements of A.
  %mine = shl i32 %lane, 3
  %mine.at = sext i32 %mine to i64
  %source = getelementptr i16, ptr %x, i64 %mine.at
  %source.global = addrspacecast ptr %source to ptr addrspace(1)
  %target = getelementptr i16, ptr addrspace(3) @tile, i64 %mine.at
  call void @llvm.nvvm.cp.async.ca.shared.global.16(ptr addrspace(3) %target, ptr addrspace(1) %source.global)
  call void @llvm.nvvm.cp.async.commit.group()
  call void @llvm.nvvm.cp.async.wait.group(i32 0)
  call void @llvm.nvvm.bar.warp.sync(i32 -1)
  ; Lane l gives row l % 16 of the left or right half of A.
  %row = and i32 %lane, 15
  %half = lshr i32 %lane, 4
  %row.at = shl i32 %row, 4
  %half.at = shl i32 %half, 3
  %element = or i32 %row.at, %half.at
  %element.at = sext i32 %element to i64
  %fragment = getelementptr i16, ptr addrspace(3) @tile, i64 %element.at
  %a = call { i32, i32, i32, i32 } @llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4.b16.p3(ptr addrspace(3) %fragment)
  %a0 = extractvalue { i32, i32, i32, i32 } %a, 0
  %a1 = extractvalue { i32, i32, i32, i32 } %a, 1
  %a2 = extractvalue { i32, i32, i32, i32 } %a, 2
  %a3 = extractvalue { i32, i32, i32, i32 } %a, 3
  ; Column l / 4 of B, rows 2 (l % 4) and 2 (l % 4) + 8.
  %group = lshr i32 %lane, 2
  %in.group = and i32 %lane, 3
  %pair = shl i32 %in.group, 1
  %column.at = shl i32 %group, 4
  %b.at = or i32 %column.at, %pair
  %b.from = add i32 %b.at, 256
  %b.index = sext i32 %b.from to i64
  %b.low = getelementptr i16, ptr %x, i64 %b.index
  %b.high = getelementptr i16, ptr %b.low, i64 8
  %b0 = load i32, ptr %b.low, align 4
  %b1 = load i32, ptr %b.high, align 4
  %d = call { float, float, float, float } @llvm.nvvm.mma.m16n8k16.row.col.bf16(i32 %a0, i32 %a1, i32 %a2, i32 %a3, i32 %b0, i32 %b1, float 0.0, float 0.0, float 0.0, float 0.0)
  %d0 = extractvalue { float, float, float, float } %d, 0
  %d1 = extractvalue { float, float, float, float } %d, 1
  %d2 = extractvalue { float, float, float, float } %d, 2
  %d3 = extractvalue { float, float, float, float } %d, 3
  %out = shl i32 %group, 3
  %out.at = or i32 %out, %pair
  %out.index = sext i32 %out.at to i64
  %y0 = getelementptr float, ptr %y, i64 %out.index
  %y1 = getelementptr float, ptr %y0, i64 1
  %y2 = getelementptr float, ptr %y0, i64 64
  %y3 = getelementptr float, ptr %y0, i64 65
  store float %d0, ptr %y0, align 4
  store float %d1, ptr %y1, align 4
  store float %d2, ptr %y2, align 4
  store float %d3, ptr %y3, align 4
  ret void
}

declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare void @llvm.nvvm.cp.async.ca.shared.global.16(ptr addrspace(3), ptr addrspace(1))
declare void @llvm.nvvm.cp.async.commit.group()
declare void @llvm.nvvm.cp.async.wait.group(i32)
declare void @llvm.nvvm.bar.warp.sync(i32)
declare { i32, i32, i32, i32 } @llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4.b16.p3(ptr addrspace(3))
declare { float, float, float, float } @llvm.nvvm.mma.m16n8k16.row.col.bf16(i32, i32, i32, i32, i32, i32, float, float, float, float)
