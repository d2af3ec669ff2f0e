// What prove.sh proves of drs.sv, by induction: from any state in which all of this holds, with any Index Register
// word, number of rows, packet lengths, late words, full cores and resets, it holds a cycle later; so it always does.
//
// First a reference, which sees the ports alone and has a register for each thing the cycle contract speaks of.
logic        known = 1'b0;     // reset has been
logic        busy;             // in a layer
logic [31:0] word_of_index;
logic [5:0]  rows_there, passed;
logic [CORES-1:0] next;        // the core whose turn it is, one bit a core
logic [15:0] wait_left;        // cycles until a header may be taken
logic [16:0] words_left;       // of the packet that passes
logic [15:0] pace_left;        // cycles until its last word may

wire logic        is_computing = word_of_index[passed[4:0]];
wire logic        is_header = words_left == '0;
wire logic        is_last = is_header ? in_word[15:0] == '0 : words_left == 17'd1;
wire logic        may = is_header ? !is_computing || (room & next) != '0 : !is_last || pace_left == '0;
wire logic        ready = busy && wait_left == '0 && may;
wire logic        passes = ready && in_valid;
wire logic        jumps = is_header && !is_computing && STREAM == 0;
wire logic        row_over = passes && (is_last || jumps);
// A layer whose last packet is jumped over lasts until the jump is.
wire logic        last_jump = busy && passed == rows_there && wait_left == 16'd1;
wire logic        layer_over = last_jump || (row_over && passed == rows_there - 6'd1 && (!jumps || DROP == 1));

always_ff @(posedge clk) begin
  if (rst) begin
    known <= 1'b1;
    {busy, wait_left, words_left, pace_left} <= '0;
    {word_of_index, rows_there, passed, next} <= '0;
  end else if (!busy && start) begin
    busy          <= 1'b1;
    word_of_index <= index_in;
    rows_there    <= rows_in;
    wait_left     <= 16'(REMAP);
    next          <= CORES'(1);
    {passed, words_left} <= '0;
  end else if (busy) begin
    if (wait_left != '0) wait_left <= wait_left - 16'd1;
    if (pace_left != '0) pace_left <= pace_left - 16'd1;
    if (passes) begin
      if (jumps) wait_left <= 16'(DROP - 1);
      else if (is_header) begin
        words_left <= {1'b0, in_word[15:0]};
        pace_left  <= 16'(DISPATCH > 1 ? DISPATCH - 2 : 0);
      end else words_left <= words_left - 17'd1;
    end
    if (row_over) begin
      passed <= passed + 6'd1;
      if (is_computing) next <= {next, next[CORES-1]};
    end
    if (layer_over) busy <= 1'b0;
  end
end

// The core of each row by counting through the Index Register, as drs.py does, and how many compute before it.
logic [CORE_BITS-1:0] core_of [33];
logic [5:0]           before [33];
always_comb begin
  core_of[0] = '0;
  before[0]  = '0;
  for (int r = 0; r < 32; r++) begin
    core_of[r+1] = !word_of_index[r] ? core_of[r] : core_of[r] == CORE_BITS'(CORES - 1) ? '0 : core_of[r] + 1'b1;
    before[r+1]  = before[r] + 6'(word_of_index[r]);
  end
end

always_comb begin
  if (!known) assume (rst);
  assume (rows_in >= 6'd1 && rows_in <= 6'd32);
end

always_comb if (known) begin
  // What DRS shows, in every cycle.
  assert (in_ready == ready);
  assert (out_valid == (passes && is_computing ? next : '0));
  assert (skip == (passes && jumps));
  assert (idle == !busy);
  if (passes && is_computing) assert (out_head == is_header && out_last == is_last && out_word == in_word);
  if (busy && wait_left == '0) assert (computing == before[32]);
end

// What its registers hold meanwhile: without it a step could begin in a state that no layer reaches.
wire logic [5:0] dealt_so_far = state != DEAL || count >= WAIT_BITS'(32) ? 6'd32 : 6'(count);
always_comb if (known) begin
  assert (state <= PASS && (state == IDLE) == !busy);
  if (busy) begin
    assert (index == word_of_index && rows == rows_there && rows >= 6'd1 && rows <= 6'd32);
    assert (next == CORES'(1) << core_of[passed]);
    assert (computing == before[dealt_so_far]);
    for (int r = 0; r < 32; r++)
      if (word_of_index[r] && 6'(r) < dealt_so_far) assert (mapping[r] == core_of[r]);
    assert ((words_left != '0) == (state == SEND || state == PASS));
    assert ((wait_left != '0) == (state == DEAL || state == JUMP));
    assert (passed == (state == JUMP ? {1'b0, row} + 6'd1 : {1'b0, row}) && {1'b0, row} < rows);
  end
  if (state == DEAL) begin
    assert (16'(count) + wait_left == 16'(REMAP) && wait_left <= 16'(REMAP));
    assert (turn == core_of[dealt_so_far] && passed == '0);
    if (count >= WAIT_BITS'(1)) assert (hit == word_of_index[0]);
    if (count >= WAIT_BITS'(2) && hit) assert (target == '0);
  end
  if (state == HEAD || state == SEND || state == PASS) begin
    assert (hit == is_computing);
    if (hit) assert (target == core_of[passed]);
  end
  if (state == JUMP) assert (16'(count) == wait_left && 16'(count) < 16'(DROP) && STREAM == 0);
  if (state == SEND || state == PASS) begin
    assert (words_left == {1'b0, left} && (state == SEND) == hit && (hit || STREAM != 0));
    assert (16'(count) == pace_left && pace_left <= 16'(DISPATCH > 1 ? DISPATCH - 2 : 0));
  end
end
