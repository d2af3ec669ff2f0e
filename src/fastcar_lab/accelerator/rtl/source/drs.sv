// Dynamic Resource Scheduling: Index Register, Mapping Registers, drop and dispatch of packets.
//
// `start` loads the Index Register. Then one Mapping Register a cycle is written: rows that compute are
// dealt to the cores round-robin. From REMAP cycles on the packets of rows 0 .. rows - 1 are taken in
// order, a word a cycle: a row whose bit is 1 goes to its core, once that has room for the packet;
// of another row only the header is taken (`skip` makes the fetcher jump to the next packet, which
// costs DROP cycles in all), or with STREAM its words pass and nobody gets them.
//
// A packet is a header, whose low 16 bits count the instruction words that follow, and these words.
// With DISPATCH its last word waits for the packet's cycle DISPATCH, the header's being the first.
`default_nettype none
module drs #(
    parameter int CORES  = 2,
    parameter int REMAP  = 32,
    parameter int DROP   = 16,
    parameter int STREAM = 0,
    parameter int DISPATCH = 0
) (
    input  wire logic             clk,
    input  wire logic             rst,
    input  wire logic             start,
    input  wire logic [31:0]      index_in,
    input  wire logic [5:0]       rows_in,
    output wire logic             idle,      // every packet of the layer has passed
    output      logic [5:0]       computing, // rows that compute, counted while they are dealt
    output wire logic [7:0]       index_bits, mapping_bits, // widths of the registers

    input  wire logic             in_valid,
    output      logic             in_ready,
    input  wire logic [63:0]      in_word,
    output wire logic             skip,

    output      logic [CORES-1:0] out_valid,
    output wire logic             out_head,
    output wire logic             out_last,
    output wire logic [63:0]      out_word,
    input  wire logic [CORES-1:0] room       // of each core, for a whole packet
);
  localparam int CORE_BITS = CORES > 1 ? $clog2(CORES) : 1;
  localparam bit SWALLOW = STREAM != 0;
  localparam int LONGEST = REMAP > DROP && REMAP > DISPATCH ? REMAP : DROP > DISPATCH ? DROP : DISPATCH;
  localparam int WAIT_BITS = $clog2(LONGEST + 1);
  localparam logic [2:0] IDLE = 0, DEAL = 1, HEAD = 2, SEND = 3, JUMP = 4, PASS = 5;

  logic [2:0]            state;
  logic [31:0]           index;
  logic [CORE_BITS-1:0]  mapping [32];
  logic [CORE_BITS-1:0]  turn;
  logic [WAIT_BITS-1:0]  count;
  logic [15:0]           left;
  logic [5:0]            rows;
  logic [4:0]            row;
  // Looked up a cycle ahead, so that neither lies between a packet and its core.
  logic                  hit;
  logic [CORE_BITS-1:0]  target;

  wire logic       dealing = state == DEAL && count < WAIT_BITS'(32);
  wire logic [4:0] dealt = 5'(count);
  wire logic       bit_now = index[dealt];
  wire logic       take = in_valid && in_ready;
  wire logic       none_follow = in_word[15:0] == 16'd0;
  wire logic       paced = DISPATCH > 1 && left == 16'd1 && count != '0;
  logic            advance;

  assign index_bits   = 8'($bits(index));
  assign mapping_bits = 8'($bits(mapping[0]));

  assign idle     = state == IDLE;
  assign out_word = in_word;
  assign out_head = state == HEAD;
  assign out_last = state == HEAD ? none_follow : left == 16'd1;
  assign skip     = !SWALLOW && take && state == HEAD && !hit;

  always_comb begin
    in_ready  = 1'b0;
    out_valid = '0;
    case (state)
      HEAD: begin
        in_ready = !hit || room[target];
        if (hit) out_valid[target] = in_valid && room[target];
      end
      SEND: begin
        in_ready = !paced;
        out_valid[target] = in_valid && !paced;
      end
      PASS: in_ready = !paced;
      default: ;
    endcase
    case (state)
      HEAD:       advance = take && (hit || SWALLOW ? none_follow : DROP == 1);
      SEND, PASS: advance = take && left == 16'd1;
      JUMP:       advance = count == WAIT_BITS'(1);
      default:    advance = 1'b0;
    endcase
  end

  wire logic [4:0] next_row = state == DEAL ? 5'd0 : row + 5'd1;
  // The mapping of row 0 is written 31 cycles before it is read.
  wire logic       look = advance || state == DEAL;

  always_ff @(posedge clk) begin
    if (look) begin
      hit    <= index[next_row];
      target <= mapping[next_row];
    end
    if (dealing && bit_now) mapping[dealt] <= turn;
  end

  always_ff @(posedge clk) begin
    if (rst) begin
      state     <= IDLE;
      index     <= '0;
      rows      <= '0;
      row       <= '0;
      turn      <= '0;
      count     <= '0;
      left      <= '0;
      computing <= '0;
    end else begin
      case (state)
        IDLE: if (start) begin
          index     <= index_in;
          rows      <= rows_in;
          row       <= '0;
          turn      <= '0;
          count     <= '0;
          computing <= '0;
          state     <= DEAL;
        end
        DEAL: begin
          count <= count + 1'b1;
          if (dealing && bit_now) begin
            turn      <= turn == CORE_BITS'(CORES - 1) ? '0 : turn + 1'b1;
            computing <= computing + 1'b1;
          end
          if (count == WAIT_BITS'(REMAP - 1)) state <= HEAD;
        end
        HEAD: if (take) begin
          left  <= in_word[15:0];
          count <= hit || SWALLOW ? WAIT_BITS'(DISPATCH > 1 ? DISPATCH - 2 : 0) : WAIT_BITS'(DROP - 1);
          if (!advance) state <= hit ? SEND : SWALLOW ? PASS : JUMP;
        end
        SEND, PASS: begin
          if (take) left <= left - 1'b1;
          if (DISPATCH > 1 && count != '0) count <= count - 1'b1;
        end
        JUMP: count <= count - 1'b1;
        default: state <= IDLE;
      endcase
      if (advance) begin
        row   <= row + 1'b1;
        state <= {1'b0, row} == rows - 6'd1 ? IDLE : HEAD;
      end
    end
  end

`ifdef FORMAL
`include "proof.svh"
`endif
endmodule
`default_nettype wire
